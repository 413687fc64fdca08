"""A tree as JSON, and back, with nothing lost that a rule or a reader needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

import numpy as np

from prm_jax import errors
from prm_jax import schema
from prm_jax.records import jsonl
from prm_jax.rows import packing
from prm_jax.runtime import checks
from prm_jax.search import bill as bill_lib
from prm_jax.search import search_models
from prm_jax.search import tree as tree_lib

Record = dict[str, Any]


def bill_record(
  bill: bill_lib.Bill,
  costs: Mapping[str, bill_lib.Cost | None],
  compute_dtype: Mapping[str, str | None] = {},
) -> Record:
  """Returns a bill as it is written.

  Args:
    bill: The bill.
    costs: The cost of each model.
    compute_dtype: The type that each computes in; None isn't known.

  Returns:
    `models`, what each did, `flops`, None if they aren't known, and
    `compute_dtype`. Of a model whose cost and prompts aren't known, the numbers
    of tokens read are None.
  """
  models = {}
  for name, spent in sorted(bill.items()):
    fields = dataclasses.asdict(spent)
    # A model that is known may read nothing: a solution without steps.
    if spent.calls and not spent.read and costs.get(name) is None:
      fields |= dict(read=None, read_once=None, context=None)
    models[name] = fields
  return dict(
    models=models,
    flops=bill_lib.flops(bill, costs),
    compute_dtype={name: compute_dtype.get(name) for name in models},
  )


def tree_record(tree: tree_lib.Tree) -> Record:
  """Returns a tree as it is written.

  Args:
    tree: The tree.

  Returns:
    The problem's record, nodes, rounds, seed, stopped and unused. A node has
    the steps, the text and the sampled ids that its parent doesn't have.
  """
  return dict(
    problem=jsonl.record_from_solution(tree.problem),
    nodes=[_node_record(tree, node) for node in tree.nodes[1:]],
    rounds=[
      dict(
        expansions=[
          [e.node, e.num, e.whole, e.writer] for e in round_.expansions
        ],
        carried=list(round_.carried),
        candidates=list(round_.candidates),
        nodes=size,
      )
      for round_, size in zip(tree.rounds, tree.sizes, strict=True)
    ],
    seed=tree.seed,
    stopped=tree.stopped,
    unused=_spent_record(tree.unused),
  )


def tree_from_record(record: Mapping[str, Any], where: str) -> tree_lib.Tree:
  """Returns the tree that a record holds.

  Args:
    record: What tree_record returned, as JSON reads it.
    where: What an error names: the file and the line.

  Returns:
    The tree.

  Raises:
    InputError: The record isn't that of a tree.
  """
  try:
    problem = jsonl.solution_from_record(dict(record["problem"]), where)
    tree = tree_lib.begin(problem, record["seed"])
    nodes = [tree.root]
    for node in record["nodes"]:
      nodes.append(_node(nodes, node))
    rounds = [
      tree_lib.Round(
        tuple(tree_lib.Expansion(*e) for e in round_["expansions"]),
        tuple(round_["carried"]),
        tuple(round_["candidates"]),
      )
      for round_ in record["rounds"]
    ]
    sizes = tuple(round_["nodes"] for round_ in record["rounds"])
    _check_numbers(nodes, rounds, sizes)
    return dataclasses.replace(
      tree,
      nodes=tuple(nodes),
      rounds=tuple(rounds),
      sizes=sizes,
      stopped=record["stopped"],
      unused=_bill(record["unused"]),
    )
  except (KeyError, TypeError, ValueError, IndexError, AttributeError) as e:
    raise errors.InputError(
      f"{where}: isn't the tree of a search ({type(e).__name__}: {e}); give a"
      " file that `prm-jax search` wrote"
    ) from None


def _check_numbers(
  nodes: Sequence[tree_lib.Node],
  rounds: Sequence[tree_lib.Round],
  sizes: Sequence[int],
) -> None:
  """Refuses rounds that name nodes which aren't there."""
  named = [
    n
    for r in rounds
    for n in (*(e.node for e in r.expansions), *r.carried, *r.candidates)
  ]
  if not all(checks.is_a(n, int) and 0 <= n < len(nodes) for n in named):
    raise ValueError("a round names a node that isn't there")
  if list(sizes) != sorted(sizes) or (sizes and sizes[-1] != len(nodes)):
    raise ValueError("the rounds have other nodes")


def _spent_record(bill: bill_lib.Bill) -> Record:
  return {name: dataclasses.asdict(spent) for name, spent in bill.items()}


def _bill(record: Mapping[str, Any]) -> bill_lib.Bill:
  return {name: bill_lib.Spent(**fields) for name, fields in record.items()}


def _node_record(tree: tree_lib.Tree, node: tree_lib.Node) -> Record:
  """Returns a node but the root."""
  assert node.parent is not None
  new, old = node.solution, tree.nodes[node.parent].solution
  record: Record = dict(
    parent=node.parent,
    path=node.path,
    steps=list(new.steps[len(old.steps) :]),
    stopped=node.stopped,
    writer=node.writer,
    step_scores=list(node.step_scores),
    score=node.score,
    log_odds=node.log_odds,
    ahead=list(node.ahead),
    cost=_spent_record(node.cost),
    completion={
      name: new.extra[name]
      for name in (*schema.STATISTICS, search_models.PROMPT_TOKENS)
      if name in new.extra
    },
  )
  if new.raw_text is not None and new.spans is not None:
    before = old.raw_text or ""
    if not new.raw_text.startswith(before):
      before = ""
    record |= dict(
      text=new.raw_text[len(before) :],
      text_begins=len(before),
      spans=[list(span) for span in new.spans[len(old.steps) :]],
    )
  if schema.SAMPLED in new.extra:
    sampled = new.extra[schema.SAMPLED]
    ids = list(sampled["ids"])
    begun = list(old.extra.get(schema.SAMPLED, {}).get("ids", ()))
    same = packing.num_common(np.asarray(begun), np.asarray(ids))
    record["sampled"] = dict(
      tokenizer=sampled["tokenizer"], same=same, ids=ids[same:]
    )
  return record


def _node(
  nodes: Sequence[tree_lib.Node], record: Mapping[str, Any]
) -> tree_lib.Node:
  """Returns the node of a record; its parent comes before it."""
  parent = nodes[record["parent"]]
  old, path = parent.solution, record["path"]
  extra = {
    k: v for k, v in nodes[0].solution.extra.items() if k != schema.SAMPLED
  } | dict(record["completion"])
  if "sampled" in record:
    sampled = record["sampled"]
    begun = old.extra.get(schema.SAMPLED, {}).get("ids", ())
    extra[schema.SAMPLED] = dict(
      tokenizer=sampled["tokenizer"],
      ids=[*begun[: sampled["same"]], *sampled["ids"]],
    )
  text: Record = dict(raw_text=None, spans=None)
  if "text" in record:
    begins = record["text_begins"]
    text = dict(
      raw_text=(old.raw_text or "")[:begins] + record["text"],
      spans=(*(old.spans or ()), *map(tuple, record["spans"])),
    )
  solution = dataclasses.replace(
    old,
    id=f"{nodes[0].solution.id}/{path}",
    steps=(*old.steps, *record["steps"]),
    source="policy",
    extra=extra,
    **text,
  )
  return tree_lib.Node(
    len(nodes),
    parent.id,
    path,
    solution,
    stopped=record["stopped"],
    writer=record["writer"],
    step_scores=tuple(record["step_scores"]),
    score=record["score"],
    log_odds=record["log_odds"],
    ahead=tuple(record["ahead"]),
    cost=_bill(record["cost"]),
  )
