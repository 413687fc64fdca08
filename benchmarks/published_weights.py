"""What prm_jax takes with published weights: CPU seconds, memory, rates.

  PRM_JAX_WEIGHTS=FOLDER PRM_JAX_DATA=FOLDER python benchmarks/published_weights.py
  [--only=NAME ...] [--rounds=3] [--output=FILE.json]

PRM_JAX_WEIGHTS holds smollm2-135m and qwen2.5-coder-0.5b, Hugging Face folders;
PRM_JAX_DATA holds prm800k/ and gsm8k/. MEASUREMENTS says what is measured. Each
is made once a round, in processes of their own with one thread and a cache
folder of their own; both sides of a comparison run in the same round. CPU
seconds are user and system time of a process from its start to its end, peaks
its largest resident set (ru_maxrss). Needs the extra `bench`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
import dataclasses
import hashlib
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from typing import Any

import real_sampling
import results

from prm_jax import errors
from prm_jax.datasets.formats import gsm8k
from prm_jax.records import jsonl

HERE = pathlib.Path(__file__).resolve().parent
SMOL, QWEN = "smollm2-135m", "qwen2.5-coder-0.5b"
# Of how many solutions of PRM800K's phase 1 encoding is measured: with parts,
# and without.
CUT, UNCUT = 10_000, 1_000
PROBLEMS, MAX_TOKENS = 12, 48
UPDATES = 2


@dataclasses.dataclass(frozen=True)
class Measurement:
  """What is measured.

  Args:
    what: It in words.
    run: Makes it once; returns numbers by name.
  """

  what: str
  run: Callable[[Place], dict[str, float]]


@dataclasses.dataclass(frozen=True)
class Took:
  """The CPU seconds and peak of a process, and the JSON that it printed."""

  cpu_s: float
  peak_mb: float
  values: dict[str, float]

  def named(self, name: str) -> dict[str, float]:
    return {f"{name}_cpu_s": self.cpu_s, f"{name}_peak_mb": self.peak_mb}


@dataclasses.dataclass(frozen=True)
class Place:
  """Where the inputs are, and a folder for what is made."""

  weights: pathlib.Path
  data: pathlib.Path
  folder: pathlib.Path

  def process(self, *words: Any, cache: str = "cache") -> Took:
    """Runs Python with these words and waits for it."""
    environment = os.environ | real_sampling.ONE_THREAD
    environment |= dict(
      JAX_PLATFORMS="cpu",
      OMP_WAIT_POLICY="PASSIVE",
      PYTHONPATH=str(HERE.parent),
      XDG_CACHE_HOME=str(self.folder / cache),
    )
    out = self.folder / "out.txt"
    with out.open("w") as f:
      process = subprocess.Popen(
        [sys.executable, *map(str, words)],
        stdout=f,
        stderr=subprocess.STDOUT,
        env=environment,
        cwd=self.data / "prm800k",
      )
      _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    lines = out.read_text().splitlines()
    if process.returncode:
      raise errors.InputError(f"{words}: " + "\n".join(lines[-20:]))
    return Took(
      usage.ru_utime + usage.ru_stime,
      usage.ru_maxrss * 1024 / 1e6,
      json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {},
    )

  def part(self, name: str, *words: Any, **kwargs: Any) -> Took:
    return self.process(HERE / "published_parts.py", name, *words, **kwargs)

  def command(self, *words: Any, **kwargs: Any) -> Took:
    return self.process("-m", "prm_jax", *words, **kwargs)

  def later(self, *words: Any) -> tuple[Took, pathlib.Path]:
    """Runs a command again, whose programs its first run has compiled.

    Returns also what it wrote, for which words must leave out `--output`.
    """
    digest = hashlib.sha256(repr(words).encode()).hexdigest()[:8]
    compiled = self.folder / f"compiled_{digest}"
    if not compiled.exists():
      self.command(*words, f"--output={compiled}")
    output = pathlib.Path(tempfile.mkdtemp(dir=self.folder), "output.jsonl")
    return self.command(*words, f"--output={output}"), output

  def imported(self, name: str) -> pathlib.Path:
    """Returns the checkpoint that `import` makes of a model."""
    to = self.folder / name
    if not to.exists():
      words = (f"--from={self.weights / name}", f"--to={to}")
      self.command("import", "--role=policy", *words)
    return to

  def problems(self, num: int) -> pathlib.Path:
    """Returns a file with the first problems of GSM8K's test set."""
    path = self.folder / f"problems_{num}.jsonl"
    read = gsm8k.read(self.data / "gsm8k/test.jsonl.gz")
    rows = [dict(id=s.id, problem=s.problem) for s, _ in zip(read, range(num))]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path

  def prm(self) -> pathlib.Path:
    """Returns a PRM of SmolLM2's weights, one update old."""
    to = self.folder / "prm"
    if not to.exists():
      self.part("train_ours", self.imported(SMOL), to, 1, 1)
    return to

  def train_words(self, name: str, template: str) -> list[str]:
    """Returns the words of a `train` on PRM800K's phase 1."""
    config = self.folder / f"{name}_{template}.py"
    base = HERE.parent / "experiments/bring_your_own.py"
    config.write_text(
      "from prm_jax.runtime import config_files\n\n\ndef get_config():\n"
      f"  c = config_files.read({str(base)!r})\n"
      f"  c.init_from = {str(self.imported(name))!r}\n"
      "  c.data.evaluation = ()\n"
      f"  c.encoding.template = {template!r}\n"
      "  c.encoding.max_tokens = 2048\n"
      "  c.packing.update(batch_size=1, sequence_length=2048)\n"
      "  c.packing.share_prefixes = True\n"
      "  c.fit.update(steps=1, eval_every=0, checkpoint_every=0)\n"
      "  c.fit.update(best_metric=None, tensorboard=False)\n"
      "  c.mesh = (1, 1, 1)\n"
      "  return c\n"
    )
    workdir = tempfile.mkdtemp(dir=self.folder)
    return [str(config), f"{workdir}/run"]


def encoding(place: Place) -> dict[str, float]:
  found = {}
  templates = ("policy", "token_classification")
  for name, template in itertools.product((SMOL, QWEN), templates):
    words = place.train_words(name, template)
    rates = place.part("encoding", CUT, UNCUT, *words).values
    found |= {
      f"{name}_{template}_{form}_solutions_per_cpu_s": rate
      for form, rate in rates.items()
    }
  return found


def start(place: Place) -> dict[str, float]:
  found: dict[str, float] = {}
  with tempfile.TemporaryDirectory(dir=place.folder) as cache:
    for name in ("first_start", "second_start"):
      words = place.train_words(SMOL, "token_classification")
      took = place.part("start", *words, cache=cache)
      found |= took.named(name)
    kept = pathlib.Path(cache, "prm_jax/encoded").rglob("*")
    found["kept_mb"] = sum(x.stat().st_size for x in kept if x.is_file()) / 1e6
  return found


def first_token(place: Place) -> dict[str, float]:
  output = place.folder / "first_token.json"
  place.process(
    HERE / "real_sampling.py",
    f"--weights={place.weights / QWEN}",
    f"--checkpoint={place.imported(QWEN)}",
    f"--problems={place.problems(PROBLEMS)}",
    *("--num=1", "--max_tokens=1", "--rounds=0", f"--output={output}"),
  )
  peer = json.loads(output.read_text())["peer"]
  ours, _ = place.later(
    *("sample", f"--policy={place.imported(QWEN)}", "--n=1", "--slots=1"),
    f"--input={place.problems(1)}",
    *("--temperature=0", "--max_tokens=1"),
  )
  return dict(
    ours_cpu_s=ours.cpu_s,
    transformers_cpu_s=peer["start_cpu_s"],
    ours_over_transformers_cpu_s=ours.cpu_s / peer["start_cpu_s"],
    ours_peak_mb=ours.peak_mb,
    transformers_peak_mb=peer["peak_gb"] * 1e3,
  )


def sample(place: Place) -> dict[str, float]:
  took, output = place.later(
    *("sample", f"--policy={place.imported(QWEN)}", "--n=1"),
    f"--input={place.problems(PROBLEMS)}",
    *("--temperature=0", f"--max_tokens={MAX_TOKENS}"),
  )
  tokens = sum(len(x.extra["sampled"]["ids"]) for x in jsonl.read(output))
  return dict(cpu_s=took.cpu_s, peak_mb=took.peak_mb, tokens=tokens)


def search(place: Place) -> dict[str, float]:
  took, _ = place.later(
    *("search", "beam", f"--policy={place.imported(SMOL)}"),
    *(f"--scorer={place.prm()}", f"--input={place.problems(2)}"),
    *("--keep=2", "--expand=2", "--max_tokens=24"),
  )
  return dict(cpu_s=took.cpu_s, peak_mb=took.peak_mb)


def layers(place: Place) -> dict[str, float]:
  found = {}
  forms = (("own", "bfloat16"), ("stack", "bfloat16"), ("stack", "float32"))
  for form, dtype in forms:
    took = place.part("layers", place.imported(SMOL), form, dtype)
    found |= {f"{form}_{dtype}_{k}": v for k, v in took.values.items()}
  return found


def training(place: Place) -> dict[str, float]:
  with tempfile.TemporaryDirectory(dir=place.folder) as folder:
    words = (place.imported(SMOL), f"{folder}/run", UPDATES, 4)
    ours = place.part("train_ours", *words, cache=f"{folder}/cache")
  theirs = place.part("train_torch", place.weights / SMOL, UPDATES)
  return (
    ours.named("ours")
    | theirs.named("torch")
    | dict(ours_over_torch_peak=ours.peak_mb / theirs.peak_mb)
  )


MEASUREMENTS = dict(
  encoding=Measurement(
    f"encoding PRM800K's phase 1 in rows of 2,048 tokens with shared prefixes,"
    f" one thread: the first {CUT:,} solutions in parts that are encoded once,"
    f" the first {UNCUT:,} as whole texts",
    encoding,
  ),
  start=Measurement(
    "`train` of SmolLM2 on PRM800K's phase 1 (31,765 solutions), from the start"
    " of the process to where its first update would be compiled: with empty"
    " caches, and again in another workdir",
    start,
  ),
  first_token=Measurement(
    "the first token of one problem, Qwen in bfloat16: the whole of `sample`,"
    " programs compiled before; beside transformers up to the token",
    first_token,
  ),
  sample=Measurement(
    f"`sample`, Qwen in bfloat16, {PROBLEMS} problems of GSM8K, {MAX_TOKENS}"
    " greedy tokens each, programs compiled before",
    sample,
  ),
  search=Measurement(
    "`search beam`, SmolLM2 as policy and as PRM, both in bfloat16, 2 problems,"
    " 2 x 2 children, 24 tokens each, programs compiled before",
    search,
  ),
  layers=Measurement(
    "SmolLM2's 30 layers on rows of 4 x 512: own arrays, unrolled, or a stack,"
    " scanned",
    layers,
  ),
  training=Measurement(
    f"{UPDATES} updates of a PRM from SmolLM2, all parameters trained, rows of 4"
    " x 512, bfloat16, no rematerialisation, a save after each; beside PyTorch"
    " (transformers, autocast, AdamW)",
    training,
  ),
)


def measure(
  names: Iterable[str], rounds: int, place: Place
) -> Iterator[dict[str, Any]]:
  """Yields each measurement's numbers of the rounds so far, which take turns."""
  found: dict[str, dict[str, list[float]]] = {name: {} for name in names}
  for number in range(rounds):
    for name, numbers in found.items():
      for key, value in MEASUREMENTS[name].run(place).items():
        numbers.setdefault(key, []).append(float(f"{value:.4g}"))
      print(f"round {number + 1}, {name}:", flush=True)
      for key, values in numbers.items():
        print(f"  {key} {values[-1]:g}", flush=True)
    yield {
      name: dict(
        what=MEASUREMENTS[name].what,
        numbers={key: _spread(values) for key, values in numbers.items()},
      )
      for name, numbers in found.items()
    }


def _spread(values: list[float]) -> dict[str, Any]:
  return dict(
    least=min(values),
    median=statistics.median(values),
    most=max(values),
    runs=values,
  )


def digests(weights: pathlib.Path) -> dict[str, str]:
  """Returns the digest of each model's weights."""
  found = {}
  for name in (SMOL, QWEN):
    with (weights / name / "model.safetensors").open("rb") as f:
      found[name] = hashlib.file_digest(f, "sha256").hexdigest()
  return found


def _folder(variable: str) -> pathlib.Path:
  if not os.environ.get(variable):
    raise errors.InputError(f"set {variable} to a folder; --help says which")
  return pathlib.Path(os.environ[variable]).resolve()


def main() -> None:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument(
    "--only", action="append", choices=MEASUREMENTS, help="may be repeated"
  )
  parser.add_argument("--rounds", type=int, default=3)
  parser.add_argument("--output", type=pathlib.Path, help="results as JSON")
  args = parser.parse_args()
  weights, data = _folder("PRM_JAX_WEIGHTS"), _folder("PRM_JAX_DATA")
  result = results.provenance("published_weights.py", args)
  result["weights"] = digests(weights)
  with tempfile.TemporaryDirectory() as folder:
    place = Place(weights, data, pathlib.Path(folder))
    for found in measure(args.only or MEASUREMENTS, args.rounds, place):
      # After each round: what was measured isn't lost if the next one fails.
      results.finish(result | dict(measured=found), args.output)


if __name__ == "__main__":
  results.run(main)
