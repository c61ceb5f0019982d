package explore

import (
	"fmt"
	"math/bits"
	"slices"
)

// Of so many schedules the goroutines are counted, and those that perform an operation looked at, which is slow. One that
// the body starts is there in the first.
const (
	counted = 100
	guarded = 10
)

// event is a step as the search sees it.
type event struct {
	thread  int
	on      [2]int
	read    bool
	waits   bool  // for its one object
	blocked bool  // who waits for its object had to wait before it
	clock   clock // steps that come before it in every equivalent schedule, and itself
}

// conflicts reports whether the order of two steps can make a difference.
func (e *event) conflicts(f *event) bool {
	if e.read && f.read || fault == "independent" && !e.blocked && !f.blocked {
		return false
	}
	return e.on[0] != 0 && (e.on[0] == f.on[0] || e.on[0] == f.on[1]) || e.on[1] != 0 && (e.on[1] == f.on[0] || e.on[1] == f.on[1])
}

// before reports whether e comes before f in every equivalent schedule.
func (e *event) before(f *event) bool { return e.clock[e.thread] <= f.clock[e.thread] }

// node is one point of the schedule that is being run, and what is known of the tree below it. Sets of threads are bits.
type node struct {
	event            // of the thread that goes on here
	name      string // of its operation
	cases     uint64 // in which it can go on; 0: not known yet
	pick      int    // the one of them that is being searched
	enabled   uint64 // could go on
	sleep     uint64 // need not: what they would lead to was seen from an earlier node
	backtrack uint64 // have to go on here, in one schedule at least
	explored  uint64 // have gone on here, in every schedule that matters
}

// is reports whether the node's step is the one that t has announced.
func (n *node) is(t *thread) bool {
	return n.name == t.op.Name && n.on == t.next.on && n.cases == t.op.ready()
}

type search struct {
	Config
	Result
	body  func(*M)
	stack []node
	fresh int // nodes from here on are new in the schedule that runs
}

// all searches the tree.
func (x *search) all() {
	for n := 1; ; n++ {
		m, cut := x.run(n)
		if cut {
			x.Pruned++
		} else {
			x.Schedules++
		}
		x.Threads, x.MaxDepth, x.Steps = len(m.threads), max(x.MaxDepth, len(x.stack)), x.Steps+len(x.stack)
		if m.failure == nil {
			x.again(m, n)
		}
		switch {
		case m.failure != nil:
			x.explain(m.failure)
			return
		case !x.next():
			x.Complete = true
			return
		case n == x.MaxSchedules:
			x.Failure = &Failure{Kind: Limit, Reason: fmt.Sprintf("%d schedules are not all", n)}
			return
		}
	}
}

// run executes the schedule on the stack, and beyond its end a new one. It is cut where all that could go on sleep.
func (x *search) run(n int) (m *M, cut bool) {
	m = begin(x.body, &M{keep: n <= x.Twice, count: n <= counted, guard: n <= guarded})
	defer m.end()
	depth, asleep := 0, uint64(0)
	for ; m.failure == nil; depth++ {
		enabled := m.enabled()
		switch {
		case depth < len(x.stack):
		case enabled == 0:
			x.stuck(m)
			return m, false
		case enabled&^asleep == 0:
			return m, true
		case depth == x.MaxSteps:
			m.fail(Limit, fmt.Sprintf("a schedule of more than %d steps", depth))
			return m, false
		default:
			x.push(enabled, asleep)
		}
		n := &x.stack[depth]
		t := m.threads[n.thread]
		if (enabled != n.enabled || n.cases != 0 && !n.is(t)) && fault != "nondeterminism" {
			m.fail(Nondeterminism, fmt.Sprintf("step %d of a schedule that has run before is not what it was", depth+1))
			break
		}
		if depth >= x.fresh {
			x.decide(n, t, depth)
		}
		asleep = x.filter(m, n)
		t.last = n.clock
		m.step(t, n.pick)
	}
	x.stack = x.stack[:depth]
	return m, false
}

// push adds a node in which the thread of the last step goes on if it can: fewer switches read better.
func (x *search) push(enabled, asleep uint64) {
	n := node{enabled: enabled, sleep: asleep, backtrack: enabled}
	n.thread = bits.TrailingZeros64(enabled &^ asleep)
	if k := len(x.stack) - 1; k >= 0 && enabled&^asleep&(1<<x.stack[k].thread) != 0 {
		n.thread = x.stack[k].thread
	}
	if x.Mode == DPOR {
		n.backtrack = 1 << n.thread
	}
	x.stack = append(x.stack, n)
}

// decide completes a new node, and finds the steps before it with which its own could change places.
func (x *search) decide(n *node, t *thread, depth int) {
	n.event, n.name, n.blocked = t.next, t.op.Name, t.op.Blocked != nil && t.op.Blocked()
	x.races(&n.event, t.last, depth)
	if n.cases == 0 {
		n.cases = t.op.ready()
		n.pick = bits.TrailingZeros64(n.cases) & 63 // none: the fault that takes an intention for the deed
		if bits.OnesCount64(n.cases) > 1 {
			x.Choices++
		}
	}
}

// filter returns the threads that sleep after n: those whose step the one of n makes no difference to.
func (x *search) filter(m *M, n *node) (asleep uint64) {
	if x.Mode == DFS {
		return 0
	}
	for _, t := range m.threads {
		if (n.sleep|n.explored)&(1<<t.id) != 0 && t.id != n.thread && (!t.next.conflicts(&n.event) || fault == "unfiltered") {
			asleep |= 1 << t.id
		}
	}
	return asleep
}

// stuck ends a schedule in which nobody can go on. Threads that wait could have come before those that made them wait.
func (x *search) stuck(m *M) {
	who := m.stuck()
	for _, t := range m.threads {
		if !t.done && fault != "blocked" {
			x.races(&t.next, t.last, len(x.stack))
		}
	}
	switch {
	case who == "":
	case x.deadlock != nil:
		m.phase = direct
		x.deadlock()
	default:
		m.fail(Deadlock, who)
	}
}

// races gives e, a step by a thread whose last one had the clock last, its clock. With each of the first depth steps that
// could come after it just as well, unless that would change places with one more on its way, it makes the search do so.
func (x *search) races(e *event, last clock, depth int) {
	if x.Mode != DPOR {
		return
	}
	e.clock = last
	for i := range depth {
		if f := &x.stack[i].event; f.conflicts(e) {
			e.clock.join(&f.clock)
		}
	}
	e.clock[e.thread]++
	var found []*event
	for i := depth - 1; i >= 0; i-- {
		f := &x.stack[i].event
		switch {
		case f.thread == e.thread, !f.conflicts(e), f.clock[f.thread] <= last[f.thread]: // no race
		case f.blocked && e.waits: // f let it go on
		case slices.ContainsFunc(found, f.before): // a step between the two does
		default:
			found = append(found, f)
			x.reverse(i, e, depth)
		}
	}
}

// reverse makes the search run e before step i. What does not depend on step i, then e, is a schedule from there; one of the
// threads that can begin it has to go on at i (a source set).
func (x *search) reverse(i int, e *event, depth int) {
	n := &x.stack[i]
	var rest []*event
	for j := i + 1; j < depth; j++ {
		if f := &x.stack[j].event; !n.before(f) {
			rest = append(rest, f)
		}
	}
	rest = append(rest, e)
	var first, seen uint64
	for k, f := range rest {
		if seen&(1<<f.thread) == 0 && !slices.ContainsFunc(rest[:k], func(g *event) bool { return g.before(f) }) {
			first |= 1 << f.thread
		}
		seen |= 1 << f.thread
	}
	first &= n.enabled
	if fault == "classic" { // Flanagan and Godefroid: the thread itself if it can go on, else all that can
		if first = n.enabled & (1 << e.thread); first == 0 {
			n.backtrack |= n.enabled
		}
		n.backtrack |= first
		return
	}
	switch {
	case first&(n.backtrack|n.sleep) != 0:
	case first&(1<<e.thread) != 0:
		n.backtrack |= 1 << e.thread
	default:
		n.backtrack |= first & -first
	}
}

// next goes back to the last node from which there is another way, and takes it.
func (x *search) next() bool {
	for k := len(x.stack) - 1; k >= 0; k-- {
		n := &x.stack[k]
		x.stack, x.fresh = x.stack[:k+1], k
		if more := n.cases >> (n.pick + 1) << (n.pick + 1); more != 0 {
			n.pick = bits.TrailingZeros64(more)
			return true
		}
		n.explored |= 1 << n.thread
		if more := n.backtrack &^ n.explored &^ n.sleep; more != 0 {
			n.event, n.cases = event{thread: bits.TrailingZeros64(more)}, 0
			return true
		}
	}
	return false
}
