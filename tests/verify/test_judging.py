"""Every gate catches its defect and names it, and stays silent for a correct migration."""

from __future__ import annotations

import dataclasses
import math
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsdp_migrate.verify.compare.evidence import Evidence
from fsdp_migrate.verify.compare.exact import differences
from fsdp_migrate.verify.compare.gate import Gate, Status
from fsdp_migrate.verify.compare.gates.data import same_restored_memory
from fsdp_migrate.verify.compare.gates.state import same_buffers
from fsdp_migrate.verify.compare.gates.traffic import same_traffic
from fsdp_migrate.verify.compare.judge import FULL, NATIVE, Judgement, cause_is_found, judge
from fsdp_migrate.verify.compare.recording import Dump, Optimizer, Recording, Tensors, Unit
from fsdp_migrate.verify.compare.sketch import Sketch
from fsdp_migrate.verify.trial.repeat import parts_for_twins

from .recordings import NAMES, SIZE, WORLD, Run, altered, evidence, tensors, with_steps, without


def cause(found: Evidence) -> str | None:
    """Key of the first failed gate."""
    failure = judge(found).first_failure
    return failure.key if failure is not None else None


def test_equal_runs_pass_every_gate() -> None:
    judgement = judge(evidence())
    assert {gate.status for gate in judgement.gates} == {Status.PASS}


def test_rounding_size_differences_pass() -> None:
    found = dataclasses.replace(evidence(), after=Run(noise=1.5 * 2.0**-24).record())
    assert judge(found).first_failure is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"noise": 1.5 * 2.0**-24}, None),
        ({"lr": 0.0101}, "settings"),
        ({"lr": 0.01 * (1 + 1e-5)}, "settings"),
        ({"gradient_scale": 1.01}, "clipping"),
        ({"follows": False}, "settings"),
    ],
)
def test_a_rate_that_follows_a_norm(changes: dict[str, Any], expected: str | None) -> None:
    sides = [{}, changes, {"noise": 2.0**-24}]
    before, after, twin = (Run(**{"follows": True, **each}).record() for each in sides)
    assert cause(Evidence(before, after, twin)) == expected
    assert not cause_is_found(Evidence(before, after))


def test_a_rate_that_does_not_change_needs_no_twin() -> None:
    assert cause_is_found(dataclasses.replace(evidence(lr=0.0101), twin=None))


def test_without_a_twin_the_floors_decide() -> None:
    found = dataclasses.replace(evidence(), twin=None)
    assert judge(found).first_failure is None
    assert cause(dataclasses.replace(evidence(gradient_scale=1.001), twin=None)) == "clipping"


def test_a_twin_is_trained_only_where_it_may_change_something() -> None:
    def asked(full: Evidence | None = None, **changes: Any) -> frozenset[str]:
        alone = dataclasses.replace(evidence(**changes), twin=None)
        return parts_for_twins(judge(alone, full))

    assert not asked()
    assert asked(gradient_scale=1.001) == {""}
    assert asked(gradient_scale=1.0 + 1e-5) == {""}
    same = dataclasses.replace(evidence(), twin=None)
    assert asked(same, gradient_scale=1.001) == {NATIVE}
    other = dataclasses.replace(evidence(gradient_scale=1.001), twin=None)
    assert asked(other) == {FULL}


@pytest.mark.parametrize(
    ("key", "status", "asked"),
    [
        ("units", Status.FAIL, False),
        ("collectives", Status.COST, False),
        ("collectives", Status.NOTE, False),
        ("units", Status.VOID, True),
        ("remainder", Status.NOTE, True),
        ("random", Status.NOTE, True),
        ("update", Status.FAIL, True),
    ],
)
def test_what_no_twin_touches_asks_for_none(key: str, status: Status, asked: bool) -> None:
    gates = (
        Gate(key="steps", title="steps", status=Status.PASS, says=""),
        Gate(key=key, title=key, status=status, says=""),
    )
    assert bool(parts_for_twins(Judgement(gates))) == asked


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"steps": 3}, "steps"),
        ({"lr": 0.0101}, "settings"),
        ({"clip": None}, "clipping"),
        ({"clip": 2.0}, "clipping"),
        ({"gradient_scale": 2.0}, "clipping"),
        ({"gradient_scale": 1.0001}, "clipping"),
        ({"scatters": 4}, "collectives"),
        ({"names": NAMES[:2]}, "names"),
    ],
)
def test_a_change_in_the_program_is_named(changes: dict[str, object], expected: str) -> None:
    assert cause(evidence(**changes)) == expected


@pytest.mark.parametrize(
    ("scales", "before"),
    [
        ((2.0, 2.0, 2.0), False),  # a clip by another norm
        ((1.0, 2.0, 2.0), False),  # of which some parameters are not clipped
        ((1.0, 2.0, 3.0), True),
    ],
)
def test_gradients_that_no_clip_makes_differ_before_it(
    scales: tuple[float, ...], before: bool
) -> None:
    judgement = judge(evidence(scales=dict(zip(NAMES, scales, strict=True))))
    assert judgement.first_failure is not None
    assert judgement.first_failure.key == "clipping"
    assert judgement.first_failure.says.endswith("differ before it") is before


@pytest.mark.parametrize(("regions", "dearer"), [(0, "memory"), (1, "memory"), (3, "time")])
def test_activations_that_are_kept_or_computed_again_are_another_cost(
    regions: int, dearer: str
) -> None:
    plain = evidence()
    before = with_steps(plain.before, recomputed=(2, 2))
    judgement = judge(Evidence(before, with_steps(plain.after, recomputed=(2, regions))))
    assert judgement.first_failure is None
    assert judgement.first_cost is not None
    assert judgement.first_cost.key == "recomputation"
    assert dearer in judgement.first_cost.hint
    same = judge(Evidence(before, with_steps(plain.after, recomputed=(2, 2))))
    assert same.first_cost is None


@pytest.mark.parametrize("gathers", [4, 7])
def test_other_gathers_are_another_cost(gathers: int) -> None:
    judgement = judge(evidence(gathers=gathers))
    assert judgement.first_failure is None
    assert judgement.first_cost is not None
    assert judgement.first_cost.key == "collectives"


def test_one_more_gather_for_the_root_is_expected_of_fsdp2() -> None:
    judgement = judge(evidence(gathers=6))
    assert judgement.first_failure is None
    assert [gate.key for gate in judgement.gates if gate.expected] == ["collectives"]


@pytest.mark.parametrize(("evaluated", "gathers", "dearer"), [(0, 7, True), (1, 7, False)])
def test_more_gathers_beside_an_evaluation(evaluated: int, gathers: int, dearer: bool) -> None:
    """Only an evaluation of what is trained makes FSDP2 gather more; a teacher's does not."""
    plain = evidence(gathers=gathers)
    after = with_steps(plain.after, evaluation_inputs=((5,),) * WORLD, evaluated=evaluated)
    judgement = judge(dataclasses.replace(plain, after=after))
    assert (judgement.first_cost is not None) is dearer
    many = evidence(gathers=50)
    after = with_steps(many.after, evaluation_inputs=((5,),) * WORLD, evaluated=1)
    assert judge(dataclasses.replace(many, after=after)).first_cost is not None


def test_gradients_are_judged_where_nothing_is_clipped() -> None:
    found = Evidence(
        Run(clip=None).record(),
        Run(clip=None, gradient_scale=1.001).record(),
        Run(clip=None, noise=2.0**-24).record(),
    )
    assert cause(found) == "gradient"


def clipped(recording: Recording, *calls: dict[str, object]) -> Recording:
    return with_steps(recording, clips=(calls,) * WORLD)


def test_scaling_two_groups_by_one_norm_is_one_clipping() -> None:
    """As a migrated program does that clips sharded and ignored parameters together."""
    plain = evidence()
    (call,) = plain.before.steps[0].clips[0]
    before = clipped(plain.before, dict(call))
    taken = {"by": "get_total_norm", "norm": 0.5, "combine": "partial:2.0"}
    scaled = {**call, "by": "clip_grads_with_norm_"}
    after = clipped(plain.after, taken, dict(taken), scaled, dict(scaled))
    assert judge(Evidence(before, after)).first_failure is None
    other = clipped(plain.after, taken, scaled, {**scaled, "norm": 0.7})
    assert cause(Evidence(before, other)) == "clipping"


def test_an_original_that_clips_by_another_norm_on_each_rank_is_told_so() -> None:
    plain = evidence(gradient_scale=1.0, lr=0.01)
    (call,) = plain.before.steps[0].clips[0]
    clips = tuple(({**call, "norm": norm},) for norm in (1.0, 1.1))
    found = Evidence(
        with_steps(plain.before, clips=clips),
        with_steps(Run(gradient_scale=1.001).record(), clips=clips),
    )
    failure = judge(found).first_failure
    assert failure is not None
    assert failure.key == "gradient"
    assert "another norm on each rank (1, 1.1)" in failure.hint


@pytest.mark.parametrize(
    ("noise", "apart", "differs"),
    [(1e-7, 1e-7, False), (1e-7, 1e-2, True), (0.0, 1e-7, True)],
    ids=["computed", "computed-otherwise", "written"],
)
def test_a_bound_that_noise_moves_has_a_tolerance(
    noise: float, apart: float, differs: bool
) -> None:
    sides = {}
    for side, relative in (("before", 0.0), ("after", apart), ("twin", noise)):
        recording: Recording = getattr(evidence(), side)
        steps = tuple(
            dataclasses.replace(
                step,
                clips=tuple(
                    tuple({**call, "bound": 2.0 * (1 + relative)} for call in calls)
                    for calls in step.clips
                ),
            )
            for step in recording.steps
        )
        sides[side] = dataclasses.replace(recording, steps=steps)
    found = judge(Evidence(**sides)).first_failure
    assert (found is not None and found.key == "clipping") == differs


@pytest.mark.parametrize(
    ("apart", "status"), [(1e-7, Status.PASS), (0.01, Status.FAIL)], ids=["rounding", "other"]
)
def test_states_restored_after_some_steps_are_compared(apart: float, status: Status) -> None:
    def restored(recording: Recording, relative: float) -> Recording:
        values = {f"{NAMES[0]}/exp_avg_sq": [1.0 + relative, 2.0, 3.0, 4.0]}
        steps = list(recording.steps)
        steps[2] = dataclasses.replace(steps[2], states=tensors(values))
        return dataclasses.replace(recording, steps=tuple(steps))

    found = evidence()
    sides = restored(found.before, 0.0), restored(found.after, apart)
    gate = same_restored_memory(dataclasses.replace(found, before=sides[0], after=sides[1]))
    assert gate is not None
    assert gate.status is status


def test_states_of_zeros_are_none() -> None:
    def remembering(recording: Recording, values: list[float]) -> Recording:
        states = tensors({f"{NAMES[0]}/momentum_buffer": values})
        first = dataclasses.replace(recording.steps[0], states=states)
        return dataclasses.replace(recording, steps=(first, *recording.steps[1:]))

    assert cause(altered(lambda after: remembering(after, [0.0] * SIZE))) is None
    assert cause(altered(lambda after: remembering(after, [1.0] * SIZE))) == "optimizer-state"


def test_other_random_numbers_alone_are_no_failure() -> None:
    found = altered(lambda r: with_steps(r, random=(1, 2)))
    judgement = judge(found)
    assert judgement.first_failure is None
    assert [gate.status for gate in judgement.gates if gate.key == "random"] == [Status.NOTE]


def test_other_random_numbers_are_blamed_when_losses_differ() -> None:
    found = evidence(gradient_scale=1.5)
    after = with_steps(found.after, random=(1, 2))
    assert cause(dataclasses.replace(found, after=after)) == "random"


def test_other_random_numbers_are_not_blamed_for_another_unit() -> None:
    plain = evidence(scatters=1)
    after = in_one_unit(with_steps(plain.after, random=(1, 2)))
    judgement = judge(dataclasses.replace(plain, after=after))
    assert judgement.first_failure is None
    assert judgement.first_cost is not None


def test_other_data_is_named() -> None:
    assert cause(altered(lambda r: with_steps(r, inputs=((7,), (8,))))) == "inputs"


def later(recording: Recording, **changes: object) -> Recording:
    """``recording`` with fields of all steps but the first replaced."""
    first, *others = recording.steps
    steps = (first, *(dataclasses.replace(step, **changes) for step in others))  # type: ignore[arg-type]
    return dataclasses.replace(recording, steps=steps)


def test_data_that_the_program_computes_with_the_model_may_differ_by_rounding() -> None:
    plain = evidence()
    assert plain.twin is not None
    after = later(plain.after, inputs=((7,), (9,)))
    noisy = later(plain.twin, inputs=((7,), (10,)))
    assert cause(dataclasses.replace(plain, after=after)) == "inputs"
    judgement = judge(dataclasses.replace(plain, after=after, twin=noisy))
    assert judgement.first_failure is None
    assert [gate.status for gate in judgement.gates if gate.key == "inputs"] == [Status.NOTE]


def test_only_inputs_that_may_be_computed_wait_for_the_twin() -> None:
    plain = evidence()
    computed = dataclasses.replace(plain, after=later(plain.after, inputs=((7,), (9,))))
    loaded = dataclasses.replace(plain, after=later(plain.after, batches=((7,), (9,))))
    assert not cause_is_found(computed)
    assert cause_is_found(loaded)
    assert cause_is_found(altered(lambda r: with_steps(r, inputs=((7,), (8,)))))
    assert not cause_is_found(plain)


def evaluated(recording: Recording, total: float) -> Recording:
    """With one evaluation before every step, whose output has this sum."""
    return with_steps(
        recording,
        evaluation_inputs=((5,),) * WORLD,
        evaluation_outputs=(((4.0, total, 30.0),),) * WORLD,
    )


def test_other_outputs_in_evaluation_are_named() -> None:
    plain = evidence()
    assert plain.twin is not None
    found = Evidence(evaluated(plain.before, 10.0), evaluated(plain.after, 10.1))
    assert cause(found) == "evaluation"
    found = dataclasses.replace(found, twin=evaluated(plain.twin, 10.1))
    assert judge(found).first_failure is None


def test_an_evaluation_that_differs_comes_before_what_it_leads_to() -> None:
    plain = evidence()
    lost = evidence(gradient_scale=1.0).after

    def teaching(recording: Recording, *totals: float) -> Recording:
        """One evaluation before every step, with these sums."""
        steps = tuple(
            dataclasses.replace(
                step,
                evaluation_inputs=((5,),) * WORLD,
                evaluation_outputs=(((4.0, total, 30.0),),) * WORLD,
            )
            for step, total in zip(recording.steps, totals, strict=True)
        )
        return dataclasses.replace(recording, steps=steps)

    def losing(recording: Recording, first: int) -> Recording:
        """Other losses from the step ``first`` on (from 0)."""
        steps = tuple(
            dataclasses.replace(s, losses=((9.0,),) * WORLD) if n >= first else s
            for n, s in enumerate(recording.steps)
        )
        return dataclasses.replace(recording, steps=steps)

    before = teaching(plain.before, 1.0, 1.0, 1.0, 1.0)
    same_time = losing(teaching(lost, 1.0, 1.0, 2.0, 2.0), 2)
    assert cause(Evidence(before, same_time)) == "evaluation"
    after_it = losing(teaching(lost, 1.0, 1.0, 2.0, 2.0), 1)
    assert cause(Evidence(before, after_it)) == "trajectory"


# --- nothing recorded must never read as equal ---------------------------------------------------


def stale(recording: Recording) -> Recording:
    """As recorded when the optimizer was built before ``fully_shard``: it owns nothing."""
    optimizer = Optimizer("SGD", len(NAMES), ((SIZE,),) * len(NAMES), 0, ((),))
    emptied = dataclasses.replace(recording, optimizers_by_rank=((optimizer,),) * WORLD)
    return with_steps(emptied, gradients=Tensors({}))


def test_an_optimizer_built_too_early_is_named() -> None:
    judgement = judge(altered(stale))
    assert judgement.first_failure is not None
    assert judgement.first_failure.key == "optimizer-alive"
    assert "before fully_shard" in judgement.first_failure.says


def test_an_original_that_trains_nothing_is_inconclusive() -> None:
    plain = evidence()
    found = Evidence(stale(plain.before), stale(plain.after), None)
    assert judge(found).first_void is not None
    assert judge(found).first_void.key == "optimizer-alive"  # type: ignore[union-attr]


def test_a_parameter_outside_of_every_module_on_both_sides_is_no_failure() -> None:
    def loose(recording: Recording) -> Recording:
        optimizer = dataclasses.replace(recording.optimizers[0], held=4, stale=((1,),))
        return dataclasses.replace(recording, optimizers_by_rank=((optimizer,),) * WORLD)

    plain = evidence()
    found = Evidence(loose(plain.before), loose(plain.after), plain.twin)
    assert judge(found).first_failure is None


def test_no_gradients_on_either_side_is_not_equal() -> None:
    plain = evidence()
    nothing = Tensors({})
    found = Evidence(
        with_steps(plain.before, gradients=nothing), with_steps(plain.after, gradients=nothing)
    )
    assert cause(found) == "gradients-present"


def test_a_missing_gradient_is_named() -> None:
    found = altered(lambda r: with_steps(r, gradients=without(r.steps[0].gradients, "layer.bias")))
    failure = judge(found).first_failure
    assert failure is not None
    assert failure.key == "gradients-present"
    assert "layer.bias" in failure.says


def test_a_hole_in_the_record_voids_a_pass() -> None:
    found = altered(lambda r: dataclasses.replace(r, errors=("after step: boom",)))
    judgement = judge(found)
    assert judgement.first_failure is None
    assert judgement.first_void is not None
    assert "boom" in judgement.first_void.says


def test_collectives_that_nobody_saw_void_a_pass() -> None:
    found = altered(lambda r: with_steps(r, collectives=({}, {})))
    void = judge(found).first_void
    assert void is not None
    assert void.key == "recorded"


def test_no_losses_void_a_pass() -> None:
    plain = evidence()
    none = ((), ())
    found = Evidence(with_steps(plain.before, losses=none), with_steps(plain.after, losses=none))
    void = judge(found).first_void
    assert void is not None
    assert void.key == "first-loss"


# --- placement, units ----------------------------------------------------------------------------


def kinds(recording: Recording, kind: str, held: tuple[int, ...]) -> Recording:
    """``embed.weight`` as another kind of parameter."""
    changed = dataclasses.replace(recording.parameters["embed.weight"], kind=kind, held=held)
    return dataclasses.replace(
        recording, parameters={**recording.parameters, "embed.weight": changed}
    )


def test_a_parameter_outside_every_unit_is_named() -> None:
    failure = judge(altered(lambda r: kinds(r, "plain", (SIZE, SIZE)))).first_failure
    assert failure is not None
    assert failure.key == "placement"
    assert "embed.weight" in failure.says
    assert "root" in failure.hint


def test_a_replicated_parameter_is_named() -> None:
    failure = judge(altered(lambda r: kinds(r, "fsdp", (SIZE, SIZE)))).first_failure
    assert failure is not None
    assert failure.key == "placement"
    assert "2 times" in failure.says


def test_a_parameter_that_was_ignored_and_is_sharded_now_is_named() -> None:
    plain = evidence()
    found = Evidence(kinds(plain.before, "plain", (SIZE, SIZE)), plain.after, plain.twin)
    assert cause(found) == "placement"


def test_a_frozen_parameter_that_trains_now_is_named() -> None:
    plain = evidence()
    frozen = dataclasses.replace(plain.before.parameters["layer.bias"], trains=False)
    before = dataclasses.replace(
        plain.before, parameters={**plain.before.parameters, "layer.bias": frozen}
    )
    assert cause(Evidence(before, plain.after, plain.twin)) == "names"


def test_other_reduction_dtype_is_named() -> None:
    def low(recording: Recording) -> Recording:
        units = tuple(dataclasses.replace(u, reduce_dtype="bfloat16") for u in recording.units)
        return dataclasses.replace(recording, units=units)

    assert cause(altered(low)) == "units"


def in_one_unit(recording: Recording, dtype: str = "float32") -> Recording:
    whole = (Unit("", "fsdp", frozenset(NAMES), dtype, dtype),)
    return dataclasses.replace(recording, units=whole)


def test_one_large_unit_instead_of_two_is_another_cost() -> None:
    plain = evidence(scatters=1)
    judgement = judge(dataclasses.replace(plain, after=in_one_unit(plain.after)))
    assert judgement.first_failure is None
    assert judgement.first_cost is not None
    assert judgement.first_cost.key == "units"


def test_one_large_unit_in_another_dtype_is_other_training() -> None:
    assert cause(altered(lambda r: in_one_unit(r, "bfloat16"))) == "units"


@pytest.mark.parametrize(("scatters", "failure"), [(1, None), (2, "collectives")])
def test_reductions_are_counted_by_the_unit_where_units_differ(
    scatters: int, failure: str | None
) -> None:
    """Two units reduce twice a backward; one that does so as well reduces at two of them."""
    plain = evidence(scatters=scatters)
    assert cause(dataclasses.replace(plain, after=in_one_unit(plain.after))) == failure


# --- numbers that are not numbers ----------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_no_number_on_one_side_fails(value: float) -> None:
    assert cause(altered(lambda r: with_steps(r, losses=((value,), (value,))))) == "first-loss"


def test_a_gradient_that_is_no_number_on_one_side_fails() -> None:
    def broken(recording: Recording) -> Recording:
        key, old = recording.steps[0].gradients.by_name["layer.bias"][0]  # type: ignore[misc]
        bad = Sketch(old.count, math.nan, math.nan, (math.nan,) * 8)
        names = dict(recording.steps[0].gradients.by_name)
        names["layer.bias"] = ((key, bad), names["layer.bias"][1])
        return with_steps(recording, gradients=Tensors(names))

    assert cause(altered(broken)) == "gradient"


# --- tolerance -----------------------------------------------------------------------------------


def test_a_chaotic_original_is_given_room() -> None:
    before = Run().record()
    after = Run(noise=1e-4).record()
    calm = Evidence(before, after, Run(noise=2.0**-24).record())
    chaotic = Evidence(before, after, Run(noise=1e-4).record())
    assert judge(calm).first_failure is not None
    assert judge(chaotic).first_failure is None


def signed(recording: Recording, sign: float) -> Recording:
    """``recording`` with a bias whose gradient is noise that Adam turns into large steps."""
    gradients = dict(recording.steps[0].gradients.by_name)
    gradients["layer.bias"] = tuple(
        (
            piece[0],
            Sketch(32, 0.0, 1e-20, tuple(sign * p * 1e-10 for p in piece[1].projections)),
        )
        for piece in gradients["layer.bias"]
        if piece is not None
    )
    steps = tuple(dataclasses.replace(s, gradients=Tensors(gradients)) for s in recording.steps)
    after = []
    for snapshot in recording.after:
        params = dict(snapshot.params.by_name)
        params["layer.bias"] = tuple(
            (
                piece[0],
                dataclasses.replace(
                    piece[1], projections=tuple(p + sign * 0.1 for p in piece[1].projections)
                ),
            )
            for piece in recording.init.params.by_name["layer.bias"]
            if piece is not None
        )
        after.append(dataclasses.replace(snapshot, params=Tensors(params)))
    return dataclasses.replace(recording, steps=steps, after=tuple(after))


def test_a_parameter_whose_gradient_is_noise_is_not_judged_by_its_update() -> None:
    """Adam makes full-size steps of the rounding noise in a gradient that should be zero."""
    plain = evidence()
    assert plain.twin is not None
    noise = signed(plain.twin, -1.0)
    found = Evidence(signed(plain.before, 1.0), signed(plain.after, -1.0), noise)
    assert found.undetermined == {"layer.bias": 1.0}
    assert judge(found).first_failure is None
    certain = Evidence(
        signed(plain.before, 1.0), signed(plain.after, -1.0), signed(plain.twin, 1.0)
    )
    assert cause(certain) == "update"


def moved(recording: Recording, way: float) -> Recording:
    """``recording`` with ``layer.bias`` so far from where it was, from the first step on."""
    after = []
    for snapshot in recording.after:
        params = dict(snapshot.params.by_name)
        params["layer.bias"] = tuple(
            (key, dataclasses.replace(part, projections=tuple(p + way for p in part.projections)))
            for key, part in (piece for piece in params["layer.bias"] if piece is not None)
        )
        after.append(dataclasses.replace(snapshot, params=Tensors(params)))
    return dataclasses.replace(recording, after=tuple(after))


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        pytest.param({-2: 63, -22: 1}, None, id="one element is as small as noise"),
        pytest.param({-2: 63, -12: 1}, "update", id="none is"),
        pytest.param({-2: 54, -22: 10}, None, id="ten are, within what noise may be"),
        pytest.param({-2: 44, -26: 20}, "update", id="the twin turns as many as any run"),
        pytest.param({}, "update", id="sizes are not known"),
    ],
)
def test_one_element_that_noise_turns_is_no_other_update(
    counts: dict[int, int], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU, one element of a bias of 1,024 was as small as noise: 0.7 % of its update."""
    monkeypatch.setattr("fsdp_migrate.verify.compare.evidence._NOISE_BITS", 30)
    plain = evidence()
    assert plain.twin is not None
    before = with_steps(plain.before, spread={"layer.bias": counts})
    assert cause(Evidence(before, moved(plain.after, 0.005), plain.twin)) == expected
    assert cause(Evidence(before, moved(plain.after, 0.05), plain.twin)) is not None


@pytest.mark.parametrize(
    ("moved", "noise", "same"),
    [
        pytest.param(True, -1.0, True, id="it follows a bias that rounding decides"),
        pytest.param(False, -1.0, False, id="it was not touched in the original"),
        pytest.param(True, 1.0, False, id="no bias is uncertain"),
    ],
)
def test_a_running_mean_follows_a_bias_that_rounding_decides(
    moved: bool, noise: float, same: bool
) -> None:
    def averaged(recording: Recording, value: float) -> Recording:
        buffers = ({"norm.running_mean": ("float32", (), value, value * value)},) * WORLD
        after = tuple(dataclasses.replace(s, buffers=buffers) for s in recording.after)
        return dataclasses.replace(recording, after=after)

    plain = evidence()
    assert plain.twin is not None
    start = 0.9 if moved else 1.0
    before = averaged(signed(plain.before, 1.0), 1.0)
    buffers = ({"norm.running_mean": ("float32", (), start, start * start)},) * WORLD
    before = dataclasses.replace(before, init=dataclasses.replace(before.init, buffers=buffers))
    after = averaged(signed(plain.after, noise), 1.01)
    gate = same_buffers(Evidence(before, after, averaged(signed(plain.twin, noise), 1.0)))
    assert (gate.status is Status.PASS) is same


def test_two_steps_are_said_to_be_few() -> None:
    found = Evidence(Run(steps=2).record(), Run(steps=2).record())
    details = [d for gate in judge(found).gates for d in gate.details]
    assert any("fewer than three steps" in detail for detail in details)


# --- final parameters, element by element ---------------------------------------------------------

WIDE = 10_000


def written(recording: Recording, folder: Path, moved: Callable[[int], float]) -> Recording:
    """``recording`` with a file of its last parameters, element ``i`` moved by ``moved(i)``."""
    index, data = {}, array("d")
    for name in NAMES:
        index[name] = (f"0:{WIDE}", "float64", WIDE, (WIDE,))
        data.extend(1.0 + moved(i) for i in range(WIDE))
    folder.mkdir()
    path = folder / "parameters.bin"
    path.write_bytes(data.tobytes())
    return dataclasses.replace(recording, dumps=(Dump(path, index, ()),))


@pytest.mark.parametrize(
    ("moved", "same"),
    [
        pytest.param(lambda i: 0.0, True, id="nothing"),
        pytest.param(lambda i: 1e-5 if i == 7 else 0.0, True, id="rounding carries one far"),
        pytest.param(lambda i: 1e-2 if i < 16 else 0.0, False, id="a row was not trained"),
        pytest.param(lambda i: 1e-4, False, id="all decayed a little more"),
        pytest.param(lambda i: math.nan if i == 7 else 0.0, False, id="not a number"),
    ],
)
def test_final_parameters_are_judged_by_their_typical_difference(
    moved: Callable[[int], float], same: bool, tmp_path: Path
) -> None:
    found = evidence()
    found = dataclasses.replace(
        found,
        before=written(found.before, tmp_path / "before", lambda i: 0.0),
        after=written(found.after, tmp_path / "after", moved),
        twin=None,
    )
    assert cause(found) == (None if same else "parameters")


def test_a_number_missing_on_both_sides_is_no_difference(tmp_path: Path) -> None:
    found = evidence()
    first = written(found.before, tmp_path / "before", lambda i: math.nan if i == 7 else 0.0)
    second = written(found.after, tmp_path / "after", lambda i: math.nan if i == 7 else 0.0)
    assert differences(first, second) is not None
    assert {d.largest for d in (differences(first, second) or {}).values()} == {0.0}


@pytest.mark.parametrize(
    ("scatters", "reduces_more", "status"),
    [
        (4, False, Status.FAIL),
        (4, True, Status.COST),
        (2, True, Status.PASS),
        (1, True, Status.FAIL),
    ],
)
def test_more_reductions_are_a_cost_where_they_are_meant(
    scatters: int, reduces_more: bool, status: Status
) -> None:
    found = dataclasses.replace(evidence(scatters=scatters), reduces_more=reduces_more)
    assert same_traffic(found).status is status
