"""Work for people in tests: items of each task, a desk, its server."""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import math
import pathlib
import threading

from prm_jax import schema
from prm_jax.people import desk as desk_lib
from prm_jax.people import judgement_store
from prm_jax.people import judgements
from prm_jax.people import people_server
from prm_jax.people import work_queue

KEYS = {"key-of-ann": "ann", "key-of-bob": "bob"}
STEPS = ("2 + 2 = 4", "so 4 x 3 = 12", "the answer is 12")


def solution(id_: str, steps: Sequence[str] = STEPS, **more) -> schema.Solution:
  return schema.Solution(id_, f"What is asked in {id_}?", tuple(steps), **more)


def item(
  task: str, id_: str = "a", steps: Sequence[str] = STEPS
) -> judgements.Item:
  """Returns an item of a task; of alternatives two that begin alike."""
  given = [solution(id_, steps)]
  if task == "pairs":
    given.append(solution(f"{id_}'", ("2 + 2 = 5",)))
  if task == "alternatives":
    given.append(solution(f"{id_}'", ("2 + 2 = 4", "4 x 3 = 13")))
    given.append(solution(f"{id_}''", ("2 + 2 = 5",)))
  return judgements.Item(id_, task, tuple(given))


def desk(
  folder: pathlib.Path,
  task: str,
  items: Sequence[judgements.Item] = (),
  *,
  gold: Sequence[str] = (),
  scores: Mapping[str, Mapping[str, Sequence[float]]] | None = None,
  keys: Mapping[str, str] = KEYS,
  hold_hours: float = math.inf,
  generate: schema.Generate | None = None,
  num_drawn: int = 2,
  **design,
) -> desk_lib.Desk:
  """Returns a desk whose judgements are in a folder."""
  items = items or [item(task, name) for name in "abc"]
  by_id = {x.id: x for x in items}
  known = dict(gold_share=0.0, random_share=0.0, overlap_share=0.0)
  work = desk_lib.Work(
    task=task,
    items=by_id,
    pool=work_queue.Pool([x for x in by_id if x not in gold], gold),
    design=work_queue.Design(**(known | design)),
    scores=scores or {},
    secret="secret",
    hold_hours=hold_hours,
  )
  store = judgement_store.JudgementStore(folder / "judgements.db")
  return desk_lib.Desk(work, store, keys, generate, num_drawn)


@contextlib.contextmanager
def serving(given: desk_lib.Desk, port: int = 0, **more: str) -> Iterator[str]:
  """Serves a desk; yields the address of the page, without a key."""
  server = people_server.PeopleServer(given, "127.0.0.1", port, **more)
  thread = threading.Thread(target=server.serve_forever)
  thread.start()
  try:
    yield server.url
  finally:
    server.shutdown()
    server.server_close()
    thread.join()
