"""Serves a PRM's step scores, and places them on a trainer's own tokens.

The server is a process of its own, so a trainer needs neither jax nor the model;
here the trainer is a loop in numpy that has tokens, as they all do. It takes about
20 seconds on two CPU cores, and once 30 more for the models of the first story:
python stories/serve_to_a_trainer.py [FOLDER]
"""

import pathlib
import re
import runpy
import subprocess
import sys

import prm_jax
from prm_jax.integrations import scoring
from prm_jax.integrations import token_credit

folder = pathlib.Path(*sys.argv[1:] or ["runs/stories"])
if not (folder / "unseen.jsonl").exists():
  runpy.run_path(str(pathlib.Path(__file__).with_name("train_a_prm.py")))

# --- The server ---------------------------------------------------------------

# Port 0 is any free one; the server says which, once it answers.
command = [sys.executable, "-m", "prm_jax", "serve"]
command += [f"--checkpoint={folder / 'prm'}", "--port=0"]
server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
assert server.stdout is not None
address = next(
  found[0]
  for found in (re.search(r"http://\S+/v1", x) for x in server.stdout)
  if found
)

# --- The trainer's side -------------------------------------------------------

# What a trainer has: prompts, and responses as ids of its own tokenizer, four of
# each prompt. Here an id is a byte. Scores are of steps, spans of characters; a
# step's reward goes to the token that completes it.
unseen = prm_jax.read_solutions(folder / "unseen.jsonl")
problem = unseen[0].problem
sample = prm_jax.Sample(
  folder / "policy", n=4, sampling=prm_jax.Sampling(max_tokens=48), seed=3
)
texts = ["\n".join(s.steps) for s in sample([prm_jax.Problem("0", problem)])]
responses = [list(text.encode()) for text in texts]


def decode(ids) -> str:
  return bytes(ids).decode("utf-8", "replace")


try:
  score_texts = scoring.cut_and_score(
    prm_jax.load_score(address), scoring.by_segmenter("line")
  )
  problems = [problem] * len(responses)
  scored = scoring.score_responses(score_texts, decode, problems, responses)
finally:
  server.terminate()
  server.wait()

# Either a reward of each token, or, as in GRPO with process supervision, an
# advantage against the steps of the other responses.
rewards = [scoring.token_rewards(x, scoring.delta) for x in scored]
advantages = token_credit.process_advantages(scored)
print(f"\n{problem}")
for text, x, of_tokens, credit in zip(texts, scored, rewards, advantages):
  print(f"\n{'step':<20}{'score':>7}{'reward':>8}{'advantage':>11}")
  begin = 0
  for step, score in zip(text.split("\n"), x.scores.scores):
    last = begin + len(step) - 1  # the byte that completes the step
    numbers = f"{of_tokens[last]:>8.2f}{credit[last]:>11.2f}"
    print(f"{step:<20}{score:>7.2f}{numbers}")
    begin += len(step) + 1

print("""
All other tokens have a reward of 0. prm_jax.integrations has an adapter for each
of TRL, verl, slime, SkyRL, OpenRLHF, Tunix, prime-rl, NeMo-Gym and Tinker
(docs/integrations.md); none of them needs prm_jax's own trainer.""")
