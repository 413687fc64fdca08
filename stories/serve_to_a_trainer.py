"""Serves a PRM over HTTP, and trains another program's policy by its scores.

The trainer has tokens of its own and computes in plain Python, as any program
may: it sends texts, gets a reward on the token that ends each step, and its
policy learns from them alone, without one right answer. It needs the extra
`serve`, and takes about 10 seconds on two CPU cores, and once 30 more for the
models:

  python stories/serve_to_a_trainer.py [FOLDER]
"""

import atexit
import math
import pathlib
import random
import runpy
import subprocess
import sys

import numpy as np

import prm_jax
from prm_jax.integrations import scoring
from prm_jax.testbed import arithmetic

folder = pathlib.Path(*sys.argv[1:] or ["runs/stories"])
if not (folder / "unseen.jsonl").exists():  # the models of the first story
  runpy.run_path(str(pathlib.Path(__file__).with_name("train_a_prm.py")))

# --- A server -----------------------------------------------------------------

# It listens at a free port and prints its address. It compiles fewer programs
# with small limits.
serve = [sys.executable, "-m", "prm_jax", "serve"]
options = ["--port=0", "--max_tokens=64", "--max_batch_tokens=512"]
checkpoint = f"--checkpoint={folder / 'prm'}"
server = subprocess.Popen(
  [*serve, *options, checkpoint], stdout=subprocess.PIPE, text=True
)
atexit.register(server.terminate)
assert server.stdout is not None
address = server.stdout.readline().partition(": ")[0]

# --- A policy that knows nothing of prm_jax -----------------------------------

# It has a parameter for each sign, the log-odds of taking it for another one,
# and begins with an error in two. Its tokens are bytes; the PRM's are words.
log_odds = dict.fromkeys("+-*", 0.0)
rng = random.Random(0)


def slip_rate(sign: str) -> float:
  return 1 / (1 + math.exp(-log_odds[sign]))


def write(problem: str) -> tuple[list[int], list[tuple[str, bool, int]]]:
  """Returns tokens, and the sign, slip and last token of each turn's line."""
  value, turns = arithmetic.parse(problem)
  text, choices = "", []
  for sign, number in turns:
    slip = rng.random() < slip_rate(sign)
    taken = arithmetic.CONFUSED[sign] if slip else sign
    result = arithmetic.turn(value, taken, number)
    text += f"{rng.choice(arithmetic.CONNECTIVES)} {value} {sign} {number} = "
    text += str(result)
    choices.append((sign, slip, len(text) - 1))
    text += "\n"
    value = result
  return list(f"{text}answer {value}".encode()), choices


def decode(ids) -> str:
  return bytes(ids).decode()


# --- Training on served scores ------------------------------------------------

task = arithmetic.Task(min_turns=2, max_turns=4)
problems = arithmetic.problems(80, "train", task, np.random.default_rng(4))
GROUP, RATE = 8, 10.0  # responses to a problem; the learning rate
right_answers = []
with prm_jax.Client(address) as prm:
  for update in range(10):
    some = problems[8 * update : 8 * update + 8]
    asked = [p for p in some for _ in range(GROUP)]
    written = [write(p.problem) for p in asked]
    ids = [tokens for tokens, _ in written]
    scored = scoring.score_responses(
      prm.score_texts, decode, [p.problem for p in asked], ids
    )
    # One for each token, 0 but where a step ends. Their sum from a step on is
    # that step's score, however many steps follow.
    rewards = [scoring.token_rewards(x, scoring.delta) for x in scored]
    if update == 0:
      print(f"{asked[0].problem}\n{decode(ids[0])}")
      print({i: round(x, 2) for i, x in enumerate(rewards[0]) if x}, "\n")
      print("update  right answers  P(slip) of +, -, *")
    # REINFORCE; the baseline is the mean of the group at the same step.
    returns = [np.cumsum(row[::-1])[::-1] for row in rewards]
    gradients = {sign: [0.0] for sign in log_odds}
    for i, (_, choices) in enumerate(written):
      group = range(i - i % GROUP, i - i % GROUP + GROUP)
      for k, (sign, slip, token) in enumerate(choices):
        baseline = np.mean([returns[j][written[j][1][k][2]] for j in group])
        advantage = returns[i][token] - baseline
        gradients[sign].append(advantage * (slip - slip_rate(sign)))
    right = [decode(x)[-1] == p.answer for x, p in zip(ids, asked)]
    right_answers.append(np.mean(right))
    rates = "  ".join(f"{slip_rate(sign):.2f}" for sign in log_odds)
    print(f"{update:>6}  {right_answers[-1]:>13.0%}  {rates}")
    for sign, values in gradients.items():
      log_odds[sign] += RATE * float(np.mean(values))

print("""
No right answer was used: the share of right answers is only shown. Three
parameters can't do much but err less; a language model can also learn to
please the PRM, so give it a reward for the answer, too. docs/integrations.md
has adapters that place rewards on the tokens of TRL, verl, OpenRLHF and seven
others; docs/serve.md has the server. Next: your own data, in
docs/bring_your_own.md""")
