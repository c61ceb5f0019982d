package explore

import (
	"cmp"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"sync/atomic"
)

// Mode is how the tree of schedules is searched. All modes reach the same final states.
type Mode int

// The modes, from the fewest schedules to the most.
const (
	DPOR  Mode = iota // source sets, sleep sets: two orders of independent steps are one
	Sleep             // sleep sets alone
	DFS               // every schedule
)

// String returns the name that MODEL lines give.
func (m Mode) String() string { return [...]string{"dpor", "sleep", "dfs"}[m] }

// Config bounds a search. The zero value is what a model should need.
type Config struct {
	Mode         Mode
	MaxSchedules int    // 0: 200,000
	MaxSteps     int    // of one schedule; 0: 10,000
	Replay       string // run this schedule alone, and go on by the first choice where it ends
	Twice        int    // the first so many schedules run twice, and must do the same; 0: 64

	deadlock func() // of the self-test: called at a deadlock, which is then a final state like any other
}

// Result is what a search has seen.
type Result struct {
	Schedules int      // that ran to their end
	Pruned    int      // that were cut: they would have repeated another
	Steps     int      // in all
	MaxDepth  int      // steps of the longest schedule
	Threads   int      // of the model
	Choices   int      // steps with several cases: Choose, and First with two ready channels
	Complete  bool     // there is no other schedule that could make a difference
	Failure   *Failure // the first one, with which the search ends
	Trace     []string // of a replay
}

// Kind is a sort of failure.
type Kind string

// The kinds of failure. The last three say that the model is no model, not that it is wrong.
const (
	Deadlock       Kind = "deadlock"
	Invariant      Kind = "invariant" // Failf
	Race           Kind = "race"      // Access without order
	Panic          Kind = "panic"
	Limit          Kind = "limit"          // too many schedules or steps, too few threads
	Nondeterminism Kind = "nondeterminism" // the same schedule did something else
	Stray          Kind = "stray"          // a goroutine that is no thread of the model
)

// Failure is what went wrong in one schedule.
type Failure struct {
	Kind     Kind
	Reason   string
	Schedule string   // for Config.Replay
	Trace    []string // one line a step: number, thread, operation, result, file and line
}

// String renders the failure with its schedule and its trace.
func (f *Failure) String() string {
	return fmt.Sprintf("%s: %s\nschedule %s\n%s", f.Kind, f.Reason, f.Schedule, strings.Join(f.Trace, "\n"))
}

// current is the execution that operations belong to. It is atomic for the sake of stray goroutines alone.
var current atomic.Pointer[M]

// fault names the part of the explorer that the self-test has taken away: a checker is believed because it fails without.
var fault string

// Explore runs body, which makes shared state and starts threads, under every schedule that can make a difference.
// The body must do the same each time: no maps in order, no clock, no chance but [M.Choose].
func Explore(c Config, body func(*M)) Result {
	c.MaxSchedules = cmp.Or(c.MaxSchedules, 200_000)
	c.MaxSteps = cmp.Or(c.MaxSteps, 10_000)
	c.Twice = cmp.Or(c.Twice, 64)
	x := &search{Config: c, body: body}
	defer current.Store(nil)
	if c.Replay != "" {
		x.replayed()
	} else {
		x.all()
	}
	return x.Result
}

// Go adds a thread to the model; the body calls it. Threads begin when the body returns.
func (m *M) Go(name string, f func()) {
	if m.phase != direct || m.over {
		panic("explore: Go outside the body of a model")
	}
	m.threads = append(m.threads, &thread{id: len(m.threads), name: name, body: f})
}

// Finally adds a check of the final state, which runs after all threads have ended; operations in it are no steps.
func (m *M) Finally(f func()) { m.finals = append(m.finals, f) }

// Failf ends the schedule with a violated invariant.
func (m *M) Failf(format string, a ...any) {
	m.fail(Invariant, fmt.Sprintf(format, a...))
	panic(unwind{})
}

// Choose returns a number from 0 to n-1, each in schedules of its own: which way a fault, or the environment, goes.
func (m *M) Choose(n int) (chosen int) {
	m.do(&Op{Name: "Choose", Cases: n, Do: func(c int) (any, Order) { chosen = c; return c, 0 }})
	return chosen
}

// Order is what an operation orders for plain memory, as The Go Memory Model says.
type Order uint8

// Parts of an Order.
const (
	Acquire Order = 1 << iota // it sees what was released through its objects
	Release                   // what came before it is seen by those who acquire
)

// Op is one operation of a modelled primitive: a step, at which any thread may go on instead.
type Op struct {
	Name    string
	On      [2]any // the objects that it touches, by pointer or channel; none: it conflicts with nothing
	Read    bool   // two reads of one object do not conflict
	Cases   int    // how many ways it can go; 0: 1
	Ready   func(c int) bool
	Blocked func() bool // whether who waits for its object waits now; nil: nobody waits for such objects
	Do      func(c int) (result any, order Order)
}

// Do performs op as the next step of the running thread. In a body and in Finally it is performed at once, in a schedule that
// has ended not at all. Outside an exploration it panics.
func Do(op *Op) {
	m := current.Load()
	if m == nil {
		panic("explore: " + op.Name + " outside an exploration: the build is tagged edamodel, and this is no model")
	}
	m.do(op)
}

// ready returns the cases in which op can go on now, as bits.
func (op *Op) ready() (cases uint64) {
	for c := range max(op.Cases, 1) {
		if op.Ready == nil || op.Ready(c) {
			cases |= 1 << c
		}
	}
	return cases
}

// choice is one step of a schedule: who, and in which case.
type choice struct {
	thread, pick int
	cases        uint64 // that were ready
}

// format renders a schedule: the threads of its steps, each with its case if there were several: 0.1.1:2.0.
func format(schedule []choice) string {
	var b strings.Builder
	for i, c := range schedule {
		if i > 0 {
			b.WriteByte('.')
		}
		b.WriteString(strconv.Itoa(c.thread))
		if bits.OnesCount64(c.cases) > 1 {
			fmt.Fprintf(&b, ":%d", c.pick)
		}
	}
	return b.String()
}

func parse(s string) (schedule []choice, err error) {
	for step := range strings.SplitSeq(s, ".") {
		who, which, several := strings.Cut(step, ":")
		c := choice{pick: -1}
		if c.thread, err = strconv.Atoi(who); err == nil && several {
			c.pick, err = strconv.Atoi(which)
		}
		if err != nil {
			return nil, fmt.Errorf("schedule %q: %w", s, err)
		}
		schedule = append(schedule, c)
	}
	return schedule, nil
}
