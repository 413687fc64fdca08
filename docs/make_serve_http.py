"""Writes docs/serve_http.md from the server's table of routes.

tests/docs/test_serve_http.py fails if the page isn't what this writes.
"""

from collections.abc import Iterable, Iterator
import itertools
import pathlib

from prm_jax import voting
from prm_jax.serving import declarations
from prm_jax.serving import routes

PAGE = pathlib.Path(__file__).resolve().parent / "serve_http.md"

_HEAD = """\
# The server's HTTP interface

<!-- docs/make_serve_http.py writes this page; don't edit it. -->

[serve.md](serve.md) says how to start a server and what it promises. This page lists its routes and their fields.

`GET /openapi.json` returns all of this as an OpenAPI 3.1 document. The server checks requests by the same schemas.

The server has a route of its own, `POST /v1/prm/score`. It also reads the requests of other programs' clients, so that a trainer can ask it for rewards:
"""

_CLIENTS = """
| client | what to set | it calls |
|---|---|---|
| verl | in code, `reward_router_address="HOST:PORT"` of its `RewardLoopWorker`; no setting of verl names a server that runs already. `reward.reward_model.model_path` must be the name of a served model (`--checkpoint=NAME=FOLDER`) | `/classify`; `/v1/embeddings` with `reward.reward_model.rollout.name=sglang` |
| OpenRLHF | `--reward.remote_url http://HOST:PORT/get_reward` | `/get_reward` |
| slime | `--rm-type remote_rm --rm-url http://HOST:PORT/rm --reward-key score` | `/rm` |
| NeMo-Gym | a resources server of yours that forwards the requests: no config of Gym names a server that runs already | `/seed_session`, `/verify`, `/aggregate_metrics` |
| clients of vLLM, SGLang, Text Embeddings Inference | their address | `/pooling`, `/classify`, `/v1/embeddings`, `/predict` |

- **Scores** are probabilities: P(correct so far) for a PRM. `use_activation`, which verl sends as `false`, doesn't change that.
- **The aggregate** makes step scores a solution's score. It is the model's own, or that of the address: `/get_reward?aggregate=min` ({aggregates}). On `/v1/prm/score`, `aggregate` and `model` are fields of the body.
- **The model** is that of `model`, if the form has this field; else it is the first.
- **Status 400** is for an unknown field, except in messages, `/verify` and `/seed_session`; for a field that would change a score, such as `truncate_prompt_tokens`; and for a query parameter that a POST doesn't take. A GET ignores its query.
- **Without a checkpoint** ([serve.md](serve.md#what-isnt-a-checkpoint)), numbers of tokens are 0.
- **Keys**: verl, OpenRLHF and slime send none, so the server must ask for none.
- **Retries**: slime tries 10 times and OpenRLHF 5 times after any error, also after a 400. OpenRLHF then logs "Failed to fetch reward" and continues without a reward for the sample.

## Texts that are read

One text with a problem and a response must be a *rendered chat*, as a chat template writes it.

- **A model with a policy's template** (`encoding.template = "policy"`) reads the text of that template alone, with its system turn.
- **Any other model**, checkpoint or not, reads the published chats of Qwen, Llama 3, Mistral and Gemma ([policies.md](policies.md)) with any system turn, which it leaves out. The first token, such as `<|begin_of_text|>`, may be missing.
- **Marks end steps.** Clients of Qwen2.5-Math-PRM write `<extra_0>` after each step; those of Math-Shepherd write ` ки` at the end of each step's line. Every model reads both in a response, also in pairs and messages, and `/pooling` returns a row for each. A text after the last mark, or a mark with no text before it, gets status 400. In `/v1/prm/score` marks are text.
- **Without marks**, the model's segmenter, or else `--segmenter`, cuts the response; without both it gets status 400.
- The text may end with the name of a token that ends a turn, and a line break. They are no part of the response.

A text gets status 400 if another problem and response would be written as the same text: if either holds the name of a control token of the template. So do several turns, a system turn of another template than the model's, and a text without a chat. `/v1/prm/score` takes any text, since problem and response are apart.

OpenRLHF and slime send the prompt apart from the response. It may then also be the problem itself: a text without the name of a control token. Pairs (`/predict`, SGLang's `text`) and messages hold the texts themselves; messages of system and developer are left out.

## Fields

A field with a `?` may be missing. `[]` is each entry of a list.
"""

_WHENCE = """
## What was tested

`tests/serving/golden_requests.py` has a request of each client, with the commit that it is from; the server answers them with the scorer's own scores. Those of verl, OpenRLHF and slime were recorded from these clients' own functions, which then read the scores. The others are written from the clients' sources. No trainer was run as a whole.
"""


def page() -> str:
  """Returns the text of the page."""
  lines = [_HEAD, "| route | whose form | |", "|---|---|---|"]
  for route in routes.ALL:
    name = f"`{route.method} {route.path}`"
    lines.append(f"| {name} | {route.client or 'ours'} | {route.about} |")
  aggregates = ", ".join(f"`{x}`" for x in voting.AGGREGATES)
  lines.append(_CLIENTS.replace("{aggregates}", aggregates))
  lines += _sections()
  lines += ["", "## Status codes", "", "| status | meaning |", "|---|---|"]
  for status, about in routes.STATUSES.items():
    lines.append(f"| {status} | {about} |")
  lines += [
    "",
    'The reply then is `{"error": {"message", "type", "param"}}`: what is'
    " wrong, the kind of error, and the field.",
    _WHENCE,
  ]
  return "\n".join(lines).rstrip("\n") + "\n"


def _sections() -> Iterator[str]:
  """Yields the fields of each route; what a client's forms share, once."""
  # The objects that are listed already, and where.
  objects: dict[str, str] = {}
  # The requests and replies of each client, and where.
  forms: dict[str, list[tuple[str, declarations.Schema]]] = {}
  for route in routes.ALL:
    client = route.client.partition(";")[0]
    lists = []
    for title, schema in (("request", route.request), ("reply", route.reply)):
      where = f"the {title} of `{route.path}`"
      same = forms.setdefault(client, [])
      items = [*_fields(schema or {}, "", where, objects, same)]
      same.append((where, schema or {}))
      if items:
        lists.append(f"\n{title.capitalize()}:\n\n" + "\n".join(_joined(items)))
    if lists and not route.is_open:
      title = f" ({client})" if client else ""
      yield f"\n### {route.method} {route.path}{title}"
      if route.takes_aggregate:
        yield "\nQuery: `aggregate`?"
      yield from lists


def _fields(
  schema: declarations.Schema,
  prefix: str,
  where: str,
  objects: dict[str, str],
  same: Iterable[tuple[str, declarations.Schema]] = (),
) -> Iterator[tuple[str, str]]:
  """Yields the name of each field in a schema, and what is said of it."""
  inside = [*_objects(schema, prefix)]
  for i, (place, inner) in enumerate(inside):
    if inner in (x for _, x in inside[:i]):
      continue  # One alone, or a list of them.
    for name, field in inner["properties"].items():
      whole = f"{place}.{name}".lstrip(".")
      shown = f"`{whole}`{'' if name in inner['required'] else '?'}"
      before = [
        x for x, form in same if form.get("properties", {}).get(name) == field
      ]
      if before:
        yield shown, f"as in {before[0]}."
        continue
      within = dict(_objects(field, whole))
      known = [objects[str(x)] for x in within.values() if str(x) in objects]
      more = f" Its fields are those of {known[0]}." if known else ""
      yield (
        shown,
        f"{declarations.in_words(field)}. {field['description']}{more}",
      )
      if not known:
        yield from _fields(field, whole, where, objects)
      for x in within.values():
        objects.setdefault(str(x), f"`{whole}` in {where}")


def _objects(
  schema: declarations.Schema, prefix: str
) -> Iterator[tuple[str, declarations.Schema]]:
  """Yields the objects in a schema, with their places."""
  for option in schema.get("anyOf", [schema]):
    place = prefix
    while "items" in option:
      option, place = option["items"], f"{place}[]"
    if "properties" in option:
      yield place, option


def _joined(items: Iterable[tuple[str, str]]) -> Iterator[str]:
  """Yields the items of a list; neighbours that say the same share one."""
  for text, names in itertools.groupby(items, lambda item: item[1]):
    yield f"- {', '.join(name for name, _ in names)}: {text}"


if __name__ == "__main__":
  PAGE.write_text(page())
