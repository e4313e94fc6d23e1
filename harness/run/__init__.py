"""Runs the cells of a plan. One decode of one prompt is a `Run`, in `stridebench.harness.core.run`.

The modules, in the order in which they act (`options` says how to run):

1. executors: groups of cells run in this process or on the workers of a Ray cluster.
2. group: all cells of one backbone and type, from loading to their seals.
3. loading: the backbone of a group; cells that cannot run on it are sealed as skipped.
4. isolation: cells that decode in a worker process, whose side is `worker`.
5. schedule: the order in which the cells decode their prompts.
6. attempt: one decode of one prompt, timed.
7. scoring: the timed decodes are scored.
8. summary: the counts that a run ends with.
"""
