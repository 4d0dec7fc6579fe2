"""Reasons and next steps, as people read them."""


def sentences(*parts: str) -> str:
    """Reasons and next steps as prose: a capital in front, a full stop behind."""
    return " ".join(f"{_capital(part).rstrip('.')}." for part in parts if part)


def _capital(text: str) -> str:
    """A capital letter in front, unless the first word is code."""
    first = text.split(" ", 1)[0]
    return text[0].upper() + text[1:] if first.rstrip(",:").isalpha() else text
