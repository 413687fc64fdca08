"""Whether Coq accepts each step of a proof.

The problem is Coq's text: imports and definitions, if it needs any, and as its
last sentence the theorem. The steps are the proof, one or several sentences
each, or parts of one. A step is right if Coq accepts its sentences, wrong if it
refuses one; after that nothing is asked. The outcome is whether the proof is
whole. `extra` of the record may have `axioms`, a list of those on which the
theorem may rest.

A proof is anyone's text. So only tactics are sent (coq_sentences), to a process
in a sandbox; and the theorem gets a name made of a digest of problem and proof,
which the prompt shows, so that nothing that a proof prints passes for a prompt.
After Qed. Coq says what the theorem rests on. The problem's author is trusted:
the variables of its sections are part of the theorem.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
import hashlib
import itertools
import re

from prm_jax import schema
from prm_jax.verifiers import coq_sentences
from prm_jax.verifiers import coq_session
from prm_jax.verifiers.asked_program import UntoldError
from prm_jax.verifiers.verdicts import Verdict

VERSION = 2
COMPLETE = "the proof is complete"
# A longer problem or proof isn't read.
MAX_CHARS = 100_000
_MOST_SHOWN = 200
_ERROR = re.compile(r"^Error:(.*)", re.M | re.S)
_NUM_GOALS = re.compile(
  r"^(?:(\d{1,9}) (?:focused )?goals?\b|goal (\d{1,9}) )", re.M
)
_GOAL = re.compile(r"^ *={6,}\n(.*?)(?:\n\s*\n|\Z)", re.M | re.S)
# Errors of Coq and the machine, not of the proof.
_LIMITS = (
  *("Anomaly", "Native compiler", "Out of memory", "Stack overflow"),
  *("System error", "Timeout", "Tactic failure: [Proofview.tclTIMEOUT]"),
)
_NO_GOAL = "No more goals"
_NO_AXIOM = "Closed under the global context"
# Under such lines comes what a theorem rests on; variables are its problem's.
_HEADING = re.compile(r"[A-Z][A-Za-z ]*:")
_VARIABLES = "Section Variables:"


def verify(
  solution: schema.Solution,
  *,
  coqtop: coq_session.Coqtop,
  time_s: float = 5.0,
  memory_mib: int = 512,
) -> list[Verdict]:
  """Returns whether Coq accepts each step; see above.

  Args:
    solution: The solution.
    coqtop: The program.
    time_s: The longest that Coq may take for a sentence, in seconds.
    memory_mib: The most memory of a proof, in MiB.
  """
  num = len(solution.steps)
  if not num:
    return []
  try:
    proof = _Proof(solution)
    with coq_session.started(
      coqtop, time_s=time_s, memory_mib=memory_mib
    ) as session:
      proof.begin(session)
      return _judged(solution.steps, proof, session)
  except UntoldError as e:
    return [Verdict(None, str(e))] * num


def outcome(verdicts: Sequence[Verdict]) -> bool | None:
  """Returns whether the steps are a whole proof, None if that isn't told.

  Args:
    verdicts: The verdict on each step.
  """
  if any(x.label == 0 for x in verdicts):
    return False
  if not verdicts or any(x.label is None for x in verdicts):
    return None
  return verdicts[-1].reason == COMPLETE


class _Proof:
  """A theorem and how far its proof is."""

  def __init__(self, solution: schema.Solution):
    self._axioms = solution.extra.get("axioms", ())
    if not isinstance(self._axioms, list | tuple) or not all(
      isinstance(x, str) for x in self._axioms
    ):
      raise UntoldError("its axioms aren't a list of names")
    text = "\n".join(solution.steps)
    if max(len(solution.problem), len(text)) > MAX_CHARS:
      raise UntoldError(f"longer than {MAX_CHARS:,} characters: not read")
    digest = hashlib.sha256(repr((solution.problem, text)).encode())
    self._name = f"prm_jax_{digest.hexdigest()[:32]}"
    problem = coq_sentences.split(solution.problem)
    stated = None
    if problem and problem[-1].is_whole:
      stated = coq_sentences.renamed(problem[-1].text, self._name)
    if stated is None:
      raise UntoldError(
        "the problem's last sentence is no theorem, as is Theorem t : 0 = 0."
      )
    self._problem = [*(x.text for x in problem[:-1]), stated[0]]
    self._own_name = stated[1]
    self.is_complete = False

  def begin(self, session: coq_session.Session) -> None:
    """States the theorem.

    Raises:
      UntoldError: Coq refuses the problem.
    """
    name = ""
    for sentence in self._problem:
      reply = session.ask(sentence, limit_s=coq_session.START_S)
      name = reply.name
      if not reply.is_accepted:
        raise UntoldError(f"Coq refuses the problem: {self._error(reply)}")
    if name != self._name:
      raise UntoldError("the problem doesn't begin its theorem's proof")

  def verdict(self, sentence: str, session: coq_session.Session) -> Verdict:
    """Returns whether Coq accepts the proof's next sentence."""
    if self.is_complete:
      return Verdict(0, "it follows the end of the proof")
    if refused := coq_sentences.why_not_sent(sentence):
      return Verdict(*refused)
    if sentence in coq_sentences.CLOSING:
      return self._closed(sentence, session)
    reply = session.ask(sentence, names=self._name)
    if not reply.is_accepted:
      return self._refused(reply)
    return Verdict(1, self._left(reply.text))

  def _closed(self, sentence: str, session: coq_session.Session) -> Verdict:
    """Returns the verdict on the proof's end."""
    # Another theorem's name is in the prompt if this one is proved.
    other = f"{self._name}_done"
    names = f"{self._name}|{other}"
    reply = session.ask(sentence, f"Theorem {other} : True.", names=names)
    if not reply.is_accepted or reply.name != other:
      return self._refused(reply)
    rests = session.ask(f"Print Assumptions {self._name}.", names=other)
    text = rests.text.strip()
    if not rests.is_accepted:
      raise UntoldError("Coq doesn't say on what the theorem rests")
    if text != _NO_AXIOM:
      if not _HEADING.match(text):
        raise UntoldError("Coq doesn't say on what the theorem rests")
      others = [x for x in _assumed(text) if x not in self._axioms]
      if others:
        return Verdict(0, self._shown(f"it rests on {', '.join(others)}"))
    self.is_complete = True
    return Verdict(1, COMPLETE)

  def _refused(self, reply: coq_session.Reply) -> Verdict:
    error = self._error(reply)
    return Verdict(None if error.startswith(_LIMITS) else 0, error)

  def _error(self, reply: coq_session.Reply) -> str:
    """Returns an error in a line."""
    found = _ERROR.search(reply.text)
    text = " ".join((found[1] if found else reply.text).split())
    return self._shown(text)

  def _left(self, text: str) -> str:
    """Returns how many goals are left, and the first."""
    counts = [int(a or b) for a, b in _NUM_GOALS.findall(text)]
    said = "accepted"
    if counts:
      num = max(counts)
      said += f", {num} goal{'s' if num != 1 else ''} left"
    elif _NO_GOAL in text:
      said += ", no goal left"
    goal = _GOAL.search(text)
    return self._shown(f"{said}: {' '.join(goal[1].split())}" if goal else said)

  def _shown(self, text: str) -> str:
    return text.replace(self._name, self._own_name)[:_MOST_SHOWN]


def _assumed(text: str) -> list[str]:
  """Returns what a theorem rests on but variables, as Coq prints it."""
  names = []
  heading = ""
  for line in text.splitlines():
    if _HEADING.fullmatch(line):
      heading = line
    # A name begins a line; what else is said of it may be on the next ones.
    elif heading != _VARIABLES and line.strip() and line[0] not in " :":
      names.append(line.split(":")[0].strip())
  return names


def _judged(
  steps: Sequence[str], proof: _Proof, session: coq_session.Session
) -> list[Verdict]:
  """Returns the verdict on each step."""
  sentences = coq_sentences.split("\n".join(steps))
  offsets = list(itertools.accumulate(len(x) + 1 for x in steps))
  # Of each step, the last sentence that has a part in it, and its verdict.
  last: list[int | None] = [None] * len(steps)
  found: list[Verdict] = []
  end = -1
  for i, sentence in enumerate(sentences):
    begin = bisect.bisect_right(offsets, sentence.start)
    end = bisect.bisect_right(offsets, sentence.end - 1)
    last[begin : end + 1] = [i] * (end + 1 - begin)
    found.append(_of_sentence(sentence, proof, session))
    if found[-1].label != 1:
      break
  is_stopped = bool(found) and found[-1].label != 1
  verdicts: list[Verdict] = []
  said = Verdict(1, "no sentence yet")
  for i, which in enumerate(last):
    if which is not None:
      said = found[which]
    if is_stopped and i > end:
      verdicts.append(Verdict(None, f"not asked, after step {end + 1}"))
    elif is_stopped and which == len(found) - 1 and i < end:
      verdicts.append(Verdict(None, f"its sentence ends in step {end + 1}"))
    else:
      verdicts.append(said)
  return verdicts


def _of_sentence(
  sentence: coq_sentences.Sentence,
  proof: _Proof,
  session: coq_session.Session,
) -> Verdict:
  if not sentence.is_whole:
    return Verdict(0, "its last sentence has no end")
  try:
    return proof.verdict(sentence.text, session)
  except UntoldError as e:
    return Verdict(None, str(e))
