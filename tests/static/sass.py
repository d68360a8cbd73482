"""Machine code of a CUDA kernel as a control-flow graph: its loops and shortest paths.

Positions are indices into the kernel's list of instructions, read from nvdisasm's listing. A path's
length is the number of instructions that it executes; a branch whose outcome depends on data can go
both ways. So the shortest path through given instructions is a lower bound of what any run executes
there, and it is the usual run where the rare cases are branched around.
"""

import re
from collections import deque
from dataclasses import dataclass, field

_FUNCTION = re.compile(r"^\s*\.text\.(\S+):")
_LABEL = re.compile(r"^\s*(\.L_\w+):")
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(.*?)\s*;")
_GUARD = re.compile(r"^@!?U?P\w+\s+")
_TARGET = re.compile(r"`\((\.L_\w+)\)")


@dataclass
class Kernel:
    name: str
    text: list[str] = field(default_factory=list)  # one instruction each, guard included
    labels: dict[str, int] = field(default_factory=dict)

    def opcode(self, at):
        """The opcode with its modifiers, without the guard: `IMMA.16832.U8.S8`."""
        return _GUARD.sub("", self.text[at]).split()[0]

    def find(self, pattern, where=None):
        """Positions, ascending, whose opcode matches the pattern from its beginning."""
        matches = re.compile(pattern).match
        positions = range(len(self.text)) if where is None else sorted(where)
        return [i for i in positions if matches(self.opcode(i))]

    def successors(self):
        """For each instruction, those that may follow it."""
        result = []
        for at, text in enumerate(self.text):
            opcode, guarded = self.opcode(at), bool(_GUARD.match(text))
            following = [at + 1] if at + 1 < len(self.text) else []
            base = opcode.split(".")[0]
            if base in ("EXIT", "RET"):
                result.append(following if guarded else [])
                continue
            target = _TARGET.search(text)
            if base != "BRA" or target is None:
                result.append(following)
                continue
            # Conditional by its guard, or by an operand before the target: `BRA P4, ...`.
            operands = _GUARD.sub("", text)[len(opcode) :].split("`")[0].strip(" ,")
            conditional = guarded or operands != ""
            result.append([self.labels[target.group(1)], *(following if conditional else [])])
        return result


def parse(listing):
    """name -> Kernel, of the output of `nvdisasm -c`."""
    kernels, current = {}, None
    for line in listing.splitlines():
        if match := _FUNCTION.match(line):
            current = kernels[match.group(1)] = Kernel(match.group(1))
        elif current is None:
            continue
        elif match := _LABEL.match(line):
            current.labels[match.group(1)] = len(current.text)
        elif match := _INSTRUCTION.match(line):
            current.text.append(match.group(1))
    return kernels


@dataclass
class Loop:
    header: int
    latches: list[int]  # the branches back to the header
    body: set[int]


def _reachable(start, edges, without):
    seen, queue = {start}, deque([start])
    while queue:
        for after in edges[queue.popleft()]:
            if after != without and after not in seen:
                seen.add(after)
                queue.append(after)
    return seen


def loops(kernel):
    """The natural loops: bodies entered only through their header."""
    edges = kernel.successors()
    before = [[] for _ in edges]
    for at, following in enumerate(edges):
        for after in following:
            before[after].append(at)
    found = {}
    for latch, following in enumerate(edges):
        for header in following:
            if header > latch or (header and latch in _reachable(0, edges, without=header)):
                continue  # not a branch back, or one into the middle of something
            loop = found.setdefault(header, Loop(header, [], {header}))
            loop.latches.append(latch)
            if latch != header:
                loop.body |= _reachable(latch, before, without=header)
    return list(found.values())


def innermost_loop(kernel, pattern):
    """The smallest loop with an instruction whose opcode matches, or None."""
    holding = [loop for loop in loops(kernel) if kernel.find(pattern, loop.body)]
    return min(holding, key=lambda loop: len(loop.body), default=None)


def shortest_cycle(kernel, loop, stops):
    """Positions of the shortest way once around the loop that visits `stops` in this order.

    A stop is a position or a collection of alternatives. None if there is no such way.
    """
    edges = kernel.successors()
    stops = [{stop} if isinstance(stop, int) else set(stop) for stop in stops]
    wanted = [{loop.header}, *stops, set(loop.latches)]
    # Breadth first over (stops made, position).
    start = (0, loop.header)
    while start[0] < len(wanted) and loop.header in wanted[start[0]]:
        start = (start[0] + 1, loop.header)
    came_from, queue = {start: None}, deque([start])
    while queue:
        state = queue.popleft()
        made, at = state
        if made == len(wanted):
            path = []
            while state is not None:
                path.append(state[1])
                state = came_from[state]
            return path[::-1]
        for after in edges[at]:
            if after not in loop.body or after == loop.header:
                continue
            done = made + 1 if after in wanted[made] else made
            if (done, after) not in came_from:
                came_from[done, after] = state
                queue.append((done, after))
    return None
