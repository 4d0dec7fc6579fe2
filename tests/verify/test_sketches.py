"""Sketches and fingerprints: the few numbers that stand for a tensor."""

from __future__ import annotations

import pytest
import torch

from fsdp_migrate.verify.capture import SCHEMA as WRITTEN
from fsdp_migrate.verify.capture.batches import fingerprint
from fsdp_migrate.verify.capture.sketch import Piece, Sketcher, exponents
from fsdp_migrate.verify.compare import load as reading
from fsdp_migrate.verify.compare.sketch import Sketch


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def whole(shape: tuple[int, ...]) -> Piece:
    return Piece(shape, (0,) * len(shape), shape, flat=False)


def test_reader_and_writer_agree_on_the_format() -> None:
    assert reading.SCHEMA == WRITTEN


# --- sketches ------------------------------------------------------------------------------------


def test_sketches_of_pieces_add_up_however_the_tensor_is_cut() -> None:
    tensor = torch.randn(6, 5)
    sketcher = Sketcher()
    total = Sketch.read(sketcher.sketch("w", whole((6, 5)), tensor))
    flat = [
        sketcher.sketch("w", Piece((6, 5), (a,), (b - a,), flat=True), tensor.reshape(-1)[a:b])
        for a, b in ((0, 13), (13, 13), (13, 30))
    ]
    columns = [
        sketcher.sketch("w", Piece((6, 5), (0, a), (6, b - a), flat=False), tensor[:, a:b])
        for a, b in ((0, 2), (2, 5))
    ]
    for parts in (flat, columns):
        added = Sketch.add(Sketch.read(part) for part in parts)
        assert added.count == 30
        assert added.projections == pytest.approx(total.projections, rel=1e-12)
        assert added.squares == pytest.approx(total.squares, rel=1e-12)


def test_a_sketch_measures_distance() -> None:
    sketcher = Sketcher()
    ratios = []
    for n in range(60):
        a, b = torch.randn(200), torch.randn(200)
        one, other = (Sketch.read(sketcher.sketch(f"w{n}", whole((200,)), t)) for t in (a, b))
        ratios.append(one.distance(other) / float((a - b).norm()))
        assert one.distance(one) == 0
    assert sum(ratios) / len(ratios) == pytest.approx(1.0, abs=0.15)
    assert sorted(ratios)[3] > 0.4  # of 8 projections, one in twenty is below 0.58
    assert min(ratios) > 0.15
    assert max(ratios) < 2.0


def test_a_single_changed_element_is_seen() -> None:
    sketcher = Sketcher()
    tensor = torch.randn(100)
    one = Sketch.read(sketcher.sketch("w", whole((100,)), tensor))
    tensor[17] = torch.nextafter(tensor[17], torch.tensor(9.0))
    assert one.distance(Sketch.read(sketcher.sketch("w", whole((100,)), tensor))) > 0


def test_pieces_of_the_same_elements_have_the_same_key() -> None:
    flat = Piece((4, 3), (3,), (6,), flat=True)
    rows = Piece((4, 3), (1, 0), (2, 3), flat=False)
    columns = Piece((4, 3), (0, 1), (4, 2), flat=False)
    assert flat.key == rows.key == "3:9"
    assert columns.span() is None
    assert columns.indices(torch.device("cpu")).tolist() == [1, 2, 4, 5, 7, 8, 10, 11]
    assert Piece((), (), (), flat=False).key == "0:1"
    assert Piece((5, 2), (5, 0), (0, 2), flat=False).key == "0:0"


def test_exponents_count_all_but_zeros() -> None:
    assert exponents(torch.tensor([0.0, 1.0, 1.5, 2.0, -0.25])) == [[-1, 1], [1, 2], [2, 1]]
    assert exponents(torch.zeros(3)) == []


def test_fingerprints() -> None:
    batch = {"x": torch.arange(4.0), "n": [1, "a", None]}
    assert fingerprint(batch) == fingerprint({"x": torch.arange(4.0), "n": [1, "a", None]})
    assert fingerprint(batch) != fingerprint({"x": torch.arange(4.0).double(), "n": [1, "a", None]})
    assert fingerprint(batch) != fingerprint({"x": torch.arange(4.0), "n": [2, "a", None]})
    assert fingerprint(torch.zeros(2, 3)) != fingerprint(torch.zeros(3, 2))
    assert fingerprint(torch.ones(3, dtype=torch.bfloat16)) == fingerprint(
        torch.ones(3, dtype=torch.bfloat16)
    )
