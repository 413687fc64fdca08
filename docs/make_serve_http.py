"""Writes docs/serve_http.md from the server's table of routes.

tests/docs/test_serve_http.py fails if the page isn't what this writes.
"""

from collections.abc import Iterator
import pathlib

from prm_jax import voting
from prm_jax.serving import fields
from prm_jax.serving import routes

PAGE = pathlib.Path(__file__).resolve().parent / "serve_http.md"

_HEAD = """\
# The server's HTTP interface

<!-- docs/make_serve_http.py writes this page; don't edit it. -->

[serve.md](serve.md) says how to start a server and what it promises. This page lists its routes, with the fields of requests and replies. `GET /openapi.json` has the same in OpenAPI's form.

Besides its own `POST /v1/prm/score`, the server reads the requests of other programs' clients, so a trainer that asks such a program for rewards can ask this server:
"""

_CLIENTS = """
| client | what to set | then it calls |
|---|---|---|
| verl | `reward_router_address="HOST:PORT"` of its `RewardLoopWorker`, in code: verl starts its reward servers itself and has no setting for another one. `reward.reward_model.model_path` must be the name of a served model (`--checkpoint=NAME=FOLDER`) | `/classify`, or `/v1/embeddings` with `reward.reward_model.rollout.name=sglang` |
| OpenRLHF | `--reward.remote_url http://HOST:PORT/get_reward` | `/get_reward` |
| slime | `--rm-type remote_rm --rm-url http://HOST:PORT/rm --reward-key score` | `/rm` |
| NeMo-Gym | a resources server of yours that forwards the requests of its agents: Gym starts each resources server by its `entrypoint`, so a config can't name one that runs already | `/seed_session`, `/verify`, `/aggregate_metrics` |
| clients of vLLM, SGLang, Text Embeddings Inference | their address | `/pooling`, `/classify`, `/v1/embeddings`, `/predict` |

- **A score is a probability**: P(correct so far) for a PRM. `use_activation` doesn't change that; verl always sends `false`.
- **An aggregate makes step scores a solution's score**: the model's own, or that of the address, such as `/get_reward?aggregate=min` ({aggregates}).
- **A query parameter that the route doesn't take is refused** by every POST: on `/v1/prm/score` `aggregate` and `model` are fields of the body. A GET reads none, so a probe may add what it wants.
- **A field that isn't known is refused**, except in messages and in `/verify`. So is one that would change a score, such as `truncate_prompt_tokens`.
- **The model** is that of `model`, where a form has it, else the first.
- **What isn't a checkpoint** ([serve.md](serve.md#what-isnt-a-checkpoint)) counts no tokens: `num_tokens`, `prompt_tokens` and the like are 0. It reads texts if the server has `--segmenter`, as does a checkpoint that records no segmenter, and the chats that "any other model" reads below.
- **A key** is asked for if the server has one; verl, OpenRLHF and slime send none.
- slime tries 10 times and OpenRLHF 5 times after any error, a 400, too. OpenRLHF then continues without a reward for that sample, and logs one line ("Failed to fetch reward").

## Texts that are read

A text with a problem and a response in it must be a *rendered chat*: what a chat template writes.

- A model whose encoding is a policy's template (`encoding.template = "policy"`) reads the text of that template alone, its system turn included.
- Any other model reads the published chats of Qwen, Llama 3, Mistral and Gemma (those of [policies.md](policies.md)), with any system turn. It puts the problem into its own form, without that turn. The first token, such as `<|begin_of_text|>`, may be missing.
- **Marks end steps.** Clients of Qwen2.5-Math-PRM write `<extra_0>` after each step, those of Math-Shepherd ` ки` at the end of each step's line. On these clients' routes every model reads these marks in a response, also in pairs and messages: each one ends a step, whoever wrote it, and `/pooling` returns a row for each. A text after the last mark, and a mark with no text before it, get status 400. `POST /v1/prm/score` takes them as text. Without marks, the model's segmenter cuts the response.
- The text may end with the name of a token that ends a turn, and a line break after it. They are no part of the response.

It is read only if no other problem and response would be written as the same text. A problem or a response that holds the name of a control token of the template, several turns, a system turn of a template that isn't the model's, and text without a chat get status 400, never a score. `POST /v1/prm/score` takes problem and response apart, and any text in them.

If a prompt comes apart from its response, as from OpenRLHF and slime, it may also be the problem itself: a text without the name of any control token. Pairs (`/predict`, SGLang's `text`) and messages hold the texts themselves; messages of system and developer are left out.
"""

_WHENCE = """
## What was tested

The requests in `tests/serving/golden_requests.py` are answered with the scorer's own scores. Those of verl, OpenRLHF and slime were recorded: the functions of these clients that send requests were run alone, and got the scores from a server. The others are written from the clients' sources. The file names the commits. No trainer was run as a whole.
"""


def page() -> str:
  """Returns the text of the page."""
  lines = [_HEAD]
  lines += ["| route | whose form | |", "|---|---|---|"]
  for route in routes.ALL:
    name = f"`{route.method} {route.path}`"
    lines.append(f"| {name} | {route.client or 'ours'} | {route.about} |")
  aggregates = ", ".join(f"`{x}`" for x in voting.AGGREGATES)
  lines.append(_CLIENTS.replace("{aggregates}", aggregates))
  for route in routes.ALL:
    if not route.is_open:
      lines += _section(route)
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


def _section(route: fields.Route) -> Iterator[str]:
  client = f" ({route.client.partition(';')[0]})" if route.client else ""
  yield f"\n## {route.method} {route.path}{client}\n"
  yield route.about
  if route.takes_aggregate:
    yield "\nQuery parameters: `aggregate`."
  for title, schema in (("Request", route.request), ("Reply", route.reply)):
    rows = list(_rows(schema or {}))
    if rows:
      yield f"\n{title}:\n"
      yield "| field | holds | |"
      yield "|---|---|---|"
      yield from dict.fromkeys(rows)


def _rows(schema: fields.Schema, prefix: str = "") -> Iterator[str]:
  """Yields a row for each field of a schema, and of what is in it."""
  for option in schema.get("anyOf", ()):
    yield from _rows(option, prefix)
  if "items" in schema:
    yield from _rows(schema["items"], f"{prefix}[]")
  for name, inner in schema.get("properties", {}).items():
    whole = f"{prefix}.{name}".lstrip(".")
    must = "" if name in schema.get("required", ()) else ", may be missing"
    holds = fields.in_words(inner)
    yield f"| `{whole}` | {holds}{must} | {inner['description']} |"
    yield from _rows(inner, whole)


if __name__ == "__main__":
  PAGE.write_text(page())
