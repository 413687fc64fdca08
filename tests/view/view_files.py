"""Files of each kind that `prm-jax view` shows, for the tests of this folder."""

import json
import pathlib

LABELS = (1.0, 0.0, None)
SCORES = dict(
  first_error=[0.9, 0.1, 0.2],
  missed=[0.9, 0.8, 0.9],
  late_alarm=[0.9, 0.8, 0.1],
  early_alarm=[0.1, 0.2, 0.3],
)


def write(path: pathlib.Path, *records: dict) -> pathlib.Path:
  """Writes records as JSON Lines; returns the path."""
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text("".join(json.dumps(x) + "\n" for x in records))
  return path


def solution(id_: str, **fields) -> dict:
  """Returns the record of a solution."""
  known = dict(problem=f"problem of {id_}", steps=["so", "then", "now"])
  return dict(id=id_) | known | fields


def folder(path: pathlib.Path) -> pathlib.Path:
  """Writes a folder with each kind of file but a search's."""
  write(
    path / "solutions.jsonl",
    *(
      solution(name, labels=LABELS, outcome=i == 1)
      for i, name in enumerate(SCORES)
    ),
    solution("bare"),
  )
  write(
    path / "a_scores.jsonl",
    *(dict(id=name, step_scores=x) for name, x in SCORES.items()),
    dict(id="alone", step_scores=[0.25, 0.5]),
  )
  write(
    path / "run" / "metrics.jsonl",
    *(
      dict(step=i, kind="train", loss_nats=1 / i, gone=None) for i in (1, 2, 3)
    ),
    dict(step=3, kind="eval", loss_nats=0.5),
  )
  results = dict(auroc=0.75, sources=dict(a=dict(f1=[0.5, 1.0])))
  (path / "other.json").write_text(
    json.dumps(results | dict(run=dict(evaluated={})))
  )
  (path / "tokenizer.json").write_text("[]")
  write(path / "problems.jsonl", dict(id="p", problem="what", answer="1"))
  (path / "run" / "metrics.damaged.jsonl").write_text("{")
  (path / "checkpoints").mkdir()
  (path / "checkpoints" / "b.jsonl").write_text("{")
  return path


def window(made: dict[str, bytes]) -> tuple[dict, dict[str, list]]:
  """Returns what the scripts of a site assign: the index, and all items."""
  text = made["data/index.js"].decode("ascii")
  start, end = "window.prmIndex = ", ";\n"
  assert text.startswith(start) and text.endswith(end)
  index = json.loads(text[len(start) : -len(end)])
  items: dict[str, list] = {
    x: [] for x in ("samples", "searches", "runs", "evaluations")
  }
  for kind in items:
    number = 0
    while f"data/{kind}-{number}.js" in made:
      text = made[f"data/{kind}-{number}.js"].decode("ascii")
      start = f'(window.prmData ??= {{}})["{kind}-{number}"] = '
      assert text.startswith(start) and text.endswith(end)
      body = text[len(start) : -len(end)]
      body = body.replace("{first: ", '{"first": ', 1)
      chunk = json.loads(body.replace(", items: [", ', "items": [', 1))
      assert chunk["first"] == len(items[kind])
      of_rows = index[kind]["chunk"]
      assert of_rows.count(number) == len(chunk["items"])
      items[kind] += chunk["items"]
      number += 1
  return index, items
