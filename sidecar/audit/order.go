package audit

import (
	"fmt"
	"strings"
)

// State is how far one job's events have come.
type State string

// The states of a job's order. The zero value is a job without events.
const (
	New        State = ""
	Allowed    State = "allowed"
	Started    State = "started"
	Finished   State = "finished"    // a read's success
	TimedOut   State = "timed_out"   // death must be said before anything else
	Stopped    State = "stopped"     // cancel or error
	Unproven   State = "unproven"    // death could not be shown
	Terminated State = "terminated"  // death was shown
	Found      State = "found"       // recovered, while not committed
	Denied     State = "denied"      // closed
	Committed  State = "committed"   // closed
	RolledBack State = "rolled_back" // closed
	Closed     State = "closed"      // closed: a read that said all, or recovered after the end
)

// transition is one row of the table of legal orders: in state From an event Kind is legal and leads to To.
type transition struct {
	From State
	Kind Kind
	To   State
}

// transitions is the union of the orders in 00-overview.md section 5. Recovery may find a job after any prefix,
// also an empty one: events that ride on the next transaction are lost with the process that held them.
var transitions = [...]transition{
	{New, Allow, Allowed},
	{New, Deny, Denied},
	{New, Recovered, Found},
	{Allowed, Start, Started},
	{Allowed, Commit, Committed}, // a session created or destroyed
	{Allowed, Cancel, Stopped},
	{Allowed, Error, Stopped},
	{Allowed, Recovered, Found},
	{Started, Commit, Committed},
	{Started, Finish, Finished},
	{Started, Timeout, TimedOut},
	{Started, Cancel, Stopped},
	{Started, Error, Stopped},
	{Started, Recovered, Found},
	{Finished, WorkerTerminated, Closed},
	{Finished, Recovered, Closed},
	{TimedOut, WorkerTerminated, Terminated},
	{TimedOut, TerminationUnproven, Unproven},
	{TimedOut, Recovered, Found},
	{Stopped, WorkerTerminated, Terminated},
	{Stopped, TerminationUnproven, Unproven},
	{Stopped, Rollback, RolledBack},
	{Stopped, Recovered, Found},
	{Unproven, WorkerTerminated, Terminated},
	{Unproven, Recovered, Found},
	{Terminated, Rollback, RolledBack},
	{Terminated, Recovered, Found},
	{Found, Rollback, RolledBack},
	{Found, Recovered, Found},
	{Denied, Recovered, Closed},
	{Committed, Recovered, Closed},
	{Closed, Recovered, Closed},
}

// Order is the order automaton of one job: a value, so that a copy is a tentative step.
// The zero value is a job without events.
type Order struct {
	State State
	N     int // events so far
	open  bool
}

// Unknown is an Order that accepts everything after n events: of a job whose first events were pruned.
func Unknown(n int) Order { return Order{N: n, open: true} }

// Next returns the order after one more event, or an error that wraps [ErrOrder] and the order as it was.
func (o Order) Next(k Kind) (Order, error) {
	if o.open {
		return Order{N: o.N + 1, open: true}, nil
	}
	for _, t := range transitions {
		if t.From == o.State && t.Kind == k {
			return Order{State: t.To, N: o.N + 1}, nil
		}
	}
	return o, fmt.Errorf("event %q of a job that is %s: %w", k, o.State.name(), ErrOrder)
}

// Ended reports whether nothing but recovery may add an event: a live process can forget the job.
func (o Order) Ended() bool {
	return o.State == Denied || o.State == Committed || o.State == RolledBack || o.State == Closed
}

func (s State) name() string {
	if s == New {
		return "new"
	}
	return string(s)
}

// Table renders the legal orders as the Markdown table of docs/audit.md.
func Table() string {
	var b strings.Builder
	b.WriteString("| a job that is | may get | and is then |\n|---|---|---|\n")
	for _, t := range transitions {
		fmt.Fprintf(&b, "| %s | `%s` | %s |\n", t.From.name(), t.Kind, t.To.name())
	}
	return b.String()
}
