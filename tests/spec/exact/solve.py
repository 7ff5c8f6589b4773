#!/usr/bin/env python3
"""Compares the engine's plans with the cheapest plans there are, computed with HiGHS.

    pip install highspy numpy
    cargo run --release -p karpenter-spec --example exact_batches -- 300 | tests/spec/exact/solve.py

A batch has up to five kinds of pods without topology constraints. Each way to fill a node with pods is a column, and costs the
cheapest offering that holds it; a plan is a set of columns that covers all pods. Columns that another one contains at the same price
are left out. HiGHS solves the integer program to optimality, so that no plan of whole nodes costs less.
"""

import itertools
import json
import sys

import highspy
import numpy as np


def columns(batch):
    """Returns the ways to fill a node, and what each costs."""
    kinds = batch["kinds"]
    counts = [kind["count"] for kind in kinds]
    vectors = np.array(list(itertools.product(*(range(count + 1) for count in counts))))[1:]
    needs = np.array([kind["needs"] for kind in kinds], dtype=np.int64)
    loads = vectors @ needs
    used = vectors > 0
    amd64 = used[:, [kind["amd64"] for kind in kinds]].any(axis=1)
    on_demand = used[:, [kind["onDemand"] for kind in kinds]].any(axis=1)
    cost = np.full(len(vectors), np.inf)
    for offer in batch["offers"]:
        fits = (loads <= np.array(offer["room"], dtype=np.int64)).all(axis=1)
        if offer["arm"]:
            fits &= ~amd64
        for price, admitted in zip(offer["prices"], (fits, fits & ~on_demand)):
            if price is not None:
                cost[admitted] = np.minimum(cost[admitted], price)
    shape = [count + 1 for count in counts]
    grid = np.full(np.prod(shape), np.inf)
    place = np.ravel_multi_index(vectors.T, shape)
    grid[place] = cost
    grid = grid.reshape(shape)
    kept = np.isfinite(cost)
    for axis, count in enumerate(counts):
        more = np.full(shape, np.inf)
        inner = [slice(None)] * len(shape)
        outer = list(inner)
        inner[axis], outer[axis] = slice(0, count), slice(1, count + 1)
        more[tuple(inner)] = grid[tuple(outer)]
        kept &= ~(more.ravel()[place] <= cost + 1e-12)
    return vectors[kept], cost[kept] + batch["nodeOverheadPrice"]


def cheapest(batch):
    """Returns the cost of the cheapest plan."""
    vectors, cost = columns(batch)
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("mip_rel_gap", 0.0)
    solver.setOptionValue("time_limit", 60.0)
    counts = [kind["count"] for kind in batch["kinds"]]
    infinity = highspy.kHighsInf
    for count in counts:
        solver.addRow(count, infinity, 0, [], [])
    for vector, price in zip(vectors, cost):
        rows = np.nonzero(vector)[0].astype(np.int32)
        solver.addCol(price, 0, infinity, len(rows), rows, vector[rows].astype(float))
    for column in range(len(cost)):
        solver.changeColIntegrality(column, highspy.HighsVarType.kInteger)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    return solver.getObjectiveValue()


def main():
    ratios, bounds = [], []
    skipped = 0
    for line in sys.stdin:
        batch = json.loads(line)
        best = None if batch["unplaced"] else cheapest(batch)
        if best is None:
            skipped += 1
            continue
        ours = batch["price"] + batch["nodes"] * batch["nodeOverheadPrice"]
        ratios.append((ours / best, batch["seed"]))
        bounds.append(batch["bound"] / best)
    ratios.sort(reverse=True)
    values = np.array([ratio for ratio, _ in ratios])
    print(f"{len(values)} batches, {skipped} left out: mean {values.mean():.4f} of the optimum, worst {values.max():.4f}")
    print(f"  optimal {int((values < 1 + 1e-6).sum())}, above by over 1 %: {int((values > 1.01).sum())}, by over 5 %: {int((values > 1.05).sum())}")
    bounds = np.array(bounds)
    print(f"  lower bound: mean {bounds.mean():.4f} of the optimum, lowest {bounds.min():.4f}, exact in {int((bounds > 1 - 1e-6).sum())}")
    for ratio, seed in ratios[:5]:
        print(f"  seed {seed}: {ratio:.4f}")


main()
