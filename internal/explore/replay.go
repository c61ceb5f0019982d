package explore

import (
	"fmt"
	"math/bits"
	"slices"
)

// schedule returns the choices on the stack.
func (x *search) schedule() (all []choice) {
	for i := range x.stack {
		n := &x.stack[i]
		all = append(all, choice{n.thread, n.pick, n.cases})
	}
	return all
}

// replay executes a schedule, and returns what it turned out to be. Onward, it goes on where the schedule ends.
func (x *search) replay(schedule []choice, trace, onward bool) (*M, []choice) {
	m := begin(x.body, &M{keep: true, trace: trace, count: true, guard: trace})
	defer m.end()
	var taken []choice
	for m.failure == nil && len(taken) < x.MaxSteps {
		enabled := m.enabled()
		if enabled == 0 {
			if who := m.stuck(); who != "" && x.deadlock == nil {
				m.fail(Deadlock, who)
			}
			break
		}
		c := choice{thread: bits.TrailingZeros64(enabled), pick: -1}
		if len(taken) < len(schedule) {
			c = schedule[len(taken)]
		} else if !onward {
			break
		}
		if c.thread < 0 || enabled&(1<<c.thread) == 0 {
			m.fail(Nondeterminism, fmt.Sprintf("step %d: there is no thread %d that could go on", len(taken)+1, c.thread))
			break
		}
		c.cases = m.threads[c.thread].op.ready()
		if c.pick < 0 {
			c.pick = bits.TrailingZeros64(c.cases)
		}
		if c.cases&(1<<c.pick) == 0 {
			m.fail(Nondeterminism, fmt.Sprintf("step %d: thread %d has no case %d", len(taken)+1, c.thread, c.pick))
			break
		}
		m.step(m.threads[c.thread], c.pick)
		taken = append(taken, c)
	}
	return m, taken
}

// replayed runs the schedule of the configuration.
func (x *search) replayed() {
	schedule, err := parse(x.Replay)
	if err != nil {
		x.Failure = &Failure{Kind: Limit, Reason: err.Error()}
		return
	}
	m, taken := x.replay(schedule, true, true)
	x.Schedules, x.Threads, x.Steps, x.MaxDepth, x.Trace = 1, len(m.threads), len(taken), len(taken), m.lines()
	if x.Failure = m.failure; x.Failure != nil {
		x.Failure.Schedule, x.Failure.Trace = format(taken), x.Trace
	}
}

// again runs the schedule of m, the n-th, once more if that is due: it must do the same. One that seems to have made a
// goroutine runs twice more: the runtime makes some, too, but not each time.
func (x *search) again(m *M, n int) {
	if n <= x.Twice && fault != "nondeterminism" {
		twin, _ := x.replay(x.schedule(), false, false)
		if twin.failure != nil || !slices.Equal(m.log, twin.log) || m.left != twin.left {
			m.fail(Nondeterminism, "the same schedule did something else when it ran again\n"+differ(m, twin)+"\n"+differ(twin, m))
		}
	}
	extra := m.extra
	for range 2 {
		if extra {
			twin, _ := x.replay(x.schedule(), false, false)
			extra = twin.extra
		}
	}
	if extra {
		m.fail(Stray, "a goroutine was started that is no thread of the model")
	}
}

// differ returns the first line of m's log that is not in the other one's, or else how it ended.
func differ(m, other *M) string {
	for i, line := range m.lines() {
		if i >= len(other.log) || m.log[i] != other.log[i] {
			return line
		}
	}
	return fmt.Sprintf("%d steps, %d threads could go on", len(m.log), bits.OnesCount64(m.left))
}

// maxTrace is how many steps of a failure are shown: the last ones, of a loop that meets the limit.
const maxTrace = 500

// explain completes a failure: its schedule, and the trace of a replay, which must fail as it did.
func (x *search) explain(f *Failure) {
	x.Failure = f
	if f.Kind == Nondeterminism || len(x.stack) == 0 {
		return
	}
	m, taken := x.replay(x.schedule(), true, false)
	lines := m.lines()
	f.Schedule, f.Trace = format(taken), lines[max(0, len(lines)-maxTrace):]
	if f.Kind != Limit && f.Kind != Stray && (m.failure == nil || m.failure.Kind != f.Kind || m.failure.Reason != f.Reason) {
		x.Failure = &Failure{Kind: Nondeterminism, Reason: fmt.Sprintf("the schedule of a failure ended differently when it ran again: %s: %s", f.Kind, f.Reason), Schedule: f.Schedule, Trace: f.Trace}
	}
}
