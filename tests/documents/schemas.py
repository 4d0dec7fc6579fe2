"""What is wrong with a report by the JSON Schema that is published for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource

SCHEMAS = Path(__file__).parents[2] / "docs" / "schemas"
FILES = sorted(SCHEMAS.glob("*.json"))


def problems(name: str, document: Any) -> list[str]:
    """What is wrong with a document; a key that the schema does not name is, too."""
    published = {path.name: _closed(json.loads(path.read_text("utf-8"))) for path in FILES}
    for schema in published.values():
        Draft202012Validator.check_schema(schema)
    among = Registry().with_resources(
        (file, Resource.from_contents(schema)) for file, schema in published.items()
    )
    found = Draft202012Validator(published[f"{name}.json"], registry=among).iter_errors(document)
    return [f"{error.json_path}: {error.message}" for error in found]


def _closed(schema: Any) -> Any:
    """A schema whose objects have no keys but those that it names."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(each) for key, each in schema.items()}
    return {**closed, "additionalProperties": False} if "properties" in schema else closed
