"""What happens inside a training process, tried in one process without torchrun."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from fsdp_migrate.verify import inject
from fsdp_migrate.verify.compare.load import LoadError, load
from fsdp_migrate.verify.compare.recording import Recording
from fsdp_migrate.verify.inject.config import VARIABLE, Config

pytestmark = pytest.mark.train

# --- injection -----------------------------------------------------------------------------------


def run_recorded(tmp_path: Path, code: str, *, steps: int = 99) -> tuple[Path, str]:
    """Run ``code`` under the injected recorder; answers the records' folder and what it printed."""
    folder = tmp_path / "records"
    folder.mkdir()
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(code))
    config = Config(folder=str(folder), run="test", max_steps=steps, seed=3)
    paths = [str(inject.SITE), os.environ.get("PYTHONPATH", "")]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        VARIABLE: config.to_json(),
    }
    done = subprocess.run(
        [sys.executable, str(script)], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


PLAIN = """
    import torch
    from torch.nn.utils import clip_grad_norm_
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        for part in range(2):
            model(torch.randn(5, 4)).square().mean().backward()
        clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        print(step)
"""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    folder, _ = run_recorded(tmp_path_factory.mktemp("plain"), PLAIN)
    return load(folder)


def test_a_plain_loop_is_recorded_without_its_help(plain: Recording) -> None:
    assert (plain.world, len(plain.steps), len(plain.after)) == (1, 3, 3)
    assert set(plain.parameters) == {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert [len(step.losses[0]) for step in plain.steps] == [2, 2, 2]
    assert plain.steps[0].clips[0][0]["bound"] == 0.5
    assert plain.settings(plain.steps[0])["0.weight"]["lr"] == 0.1
    assert plain.optimizers[0].kind == "AdamW"
    assert set(plain.after[-1].buffers[0]) == {
        "1.running_mean",
        "1.running_var",
        "1.num_batches_tracked",
    }
    assert not plain.errors
    assert not plain.unsupported


def test_sketches_in_the_record_are_those_of_the_parameters(plain: Recording) -> None:
    dumped = plain.dumps[0]
    assert dumped.index["0.weight"] == ("0:12", "float32", 12, (3, 4))
    values = torch.frombuffer(bytearray(dumped.path.read_bytes()), dtype=torch.float32)[:12]
    name = next(iter(dumped.index))
    assert name == "0.weight"
    assert plain.after[-1].params.whole["0.weight"].norm == pytest.approx(float(values.norm()))


def test_recording_changes_no_number(tmp_path: Path) -> None:
    ends = PLAIN + "    print(sum(float(p.double().sum()) for p in model.parameters()))\n"
    code = textwrap.dedent(ends).replace(
        "import torch\n", "import torch\ntorch.manual_seed(5)\n", 1
    )
    _, recorded = run_recorded(tmp_path, code)
    plain = subprocess.run(
        [sys.executable, str(tmp_path / "script.py")], capture_output=True, text=True, check=True
    )
    assert recorded == plain.stdout


def test_a_run_stops_after_the_steps_asked_for(tmp_path: Path) -> None:
    folder, printed = run_recorded(tmp_path, PLAIN, steps=2)
    # Stopped inside the backward of the third step: what follows the second still happened.
    assert printed.split() == ["0", "1"]
    assert len(load(folder).steps) == 2


def test_a_hidden_sitecustomize_still_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import builtins; builtins.HIDDEN = 1\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    _, printed = run_recorded(tmp_path, "print(HIDDEN)")
    assert printed.strip() == "1"


def test_nothing_happens_without_the_variable(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(inject.SITE)}
    code = "import sys; print([n for n in sys.modules if n.startswith('fsdp_migrate')])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert done.stdout.strip() == "[]"


def test_patched_modules_look_as_if_untouched(tmp_path: Path) -> None:
    code = """
        import inspect, torch
        from torch.distributed.fsdp import fully_shard
        print(type(torch.__spec__.loader).__name__, type(torch.__loader__).__name__)
        print(next(iter(inspect.signature(fully_shard).parameters)), fully_shard.__name__)
        print(hasattr(fully_shard, 'state'), len(inspect.getsource(torch.autograd)) > 0)
    """
    _, printed = run_recorded(tmp_path, code)
    assert printed.splitlines() == [
        "SourceFileLoader SourceFileLoader",
        "module fully_shard",
        "True True",
    ]


# --- damaged records -----------------------------------------------------------------------------


def test_half_a_last_line_is_forgiven_and_a_damaged_one_is_not(tmp_path: Path) -> None:
    folder, _ = run_recorded(tmp_path, PLAIN)
    path = folder / "rank-0.jsonl"
    text = path.read_text()
    path.write_text(text + '{"t":"ste')
    assert len(load(folder).steps) == 3
    path.write_text(text.replace('"t":"step"', '"t":"step', 1))
    with pytest.raises(LoadError, match=r"rank-0.jsonl:\d+ is damaged"):
        load(folder)


def test_missing_ranks_and_other_formats(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="ranks"):
        load(tmp_path)
    folder, _ = run_recorded(tmp_path, PLAIN)
    path = folder / "rank-0.jsonl"
    path.write_text(re.sub(r'"schema":\d+', '"schema":99', path.read_text()))
    with pytest.raises(LoadError, match="another version"):
        load(folder)
    path.rename(folder / "rank-1.jsonl")
    with pytest.raises(LoadError, match="ranks"):
        load(folder)
