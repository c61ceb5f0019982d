package audit

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// legal is the text of 00-overview.md section 5, each bracket written out by hand.
func legal() []string {
	return []string{
		"allow start commit",
		"allow start timeout worker_terminated rollback",
		"allow cancel rollback", "allow start cancel rollback",
		"allow cancel worker_terminated rollback", "allow start cancel worker_terminated rollback",
		"allow error rollback", "allow start error rollback",
		"allow error worker_terminated rollback", "allow start error worker_terminated rollback",
		"allow start timeout termination_unproven", "allow start timeout termination_unproven worker_terminated rollback",
		"allow start cancel termination_unproven worker_terminated rollback",
		"allow start error termination_unproven worker_terminated rollback",
		"recovered", "allow recovered rollback", "allow start recovered rollback", "allow cancel recovered rollback", "allow start timeout recovered rollback",
		"allow start cancel termination_unproven recovered rollback", "allow start error worker_terminated recovered rollback",
		"allow start commit recovered", "allow start recovered", "allow start finish recovered", "allow recovered recovered rollback",
		"allow start finish", "allow start finish worker_terminated",
		"allow start timeout", "allow start timeout worker_terminated", "allow cancel", "allow start error",
		"allow cancel termination_unproven worker_terminated",
		"allow commit",
		"deny",
	}
}

func illegal() []string {
	return []string{
		"start", "commit", "rollback", "finish", "allow allow", "allow start start", "allow finish", "allow rollback", "allow deny",
		"allow start rollback", "allow timeout", "allow worker_terminated",
		"allow start timeout rollback", // death was never said
		"allow start timeout commit", "allow start cancel commit", "allow start error commit",
		"allow start timeout termination_unproven rollback", "allow start termination_unproven",
		"allow start commit rollback", "allow start commit commit", "allow start commit recovered rollback", "allow start commit worker_terminated",
		"allow start cancel rollback recovered", "allow start cancel rollback rollback", "allow start error rollback commit",
		"allow start finish commit", "allow start finish rollback", "allow start finish worker_terminated worker_terminated",
		"deny allow", "deny start", "recovered commit", "recovered start",
	}
}

// walk returns how many events of a text are legal.
func walk(text string, next func(Order, Kind) (Order, error)) (n int, err error) {
	var o Order
	for k := range strings.FieldsSeq(text) {
		if o, err = next(o, Kind(k)); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// mistakes lists the texts that an automaton judges wrongly. An illegal one must fail at its last event.
func mistakes(next func(Order, Kind) (Order, error)) (wrong []string) {
	for _, text := range legal() {
		if _, err := walk(text, next); err != nil {
			wrong = append(wrong, text)
		}
	}
	for _, text := range illegal() {
		if n, err := walk(text, next); !errors.Is(err, ErrOrder) || n != len(strings.Fields(text))-1 {
			wrong = append(wrong, text)
		}
	}
	return wrong
}

func TestOrders(t *testing.T) {
	if wrong := mistakes(Order.Next); wrong != nil {
		t.Errorf("judged wrongly: %q", wrong)
	}
}

// TestOrdersControl adds and removes each row of the table in turn: the texts must notice every change.
func TestOrdersControl(t *testing.T) {
	for _, left := range transitions {
		without := func(o Order, k Kind) (Order, error) {
			if o.State == left.From && k == left.Kind {
				return o, ErrOrder
			}
			return o.Next(k)
		}
		if mistakes(without) == nil && left.From != Denied && left.From != Closed { // those two only let recovery run twice
			t.Errorf("nothing needs %v", left)
		}
	}
	for _, extra := range []transition{{TimedOut, Rollback, RolledBack}, {Committed, Rollback, RolledBack}, {Stopped, Commit, Committed}, {Unproven, Rollback, RolledBack}} {
		with := func(o Order, k Kind) (Order, error) {
			if o.State == extra.From && k == extra.Kind {
				return Order{State: extra.To, N: o.N + 1}, nil
			}
			return o.Next(k)
		}
		if mistakes(with) == nil {
			t.Errorf("%v is not noticed", extra)
		}
	}
}

func TestOrderIsAValue(t *testing.T) {
	o, err := Order{}.Next(Allow)
	if err != nil {
		t.Fatal(err)
	}
	tentative, err := o.Next(Commit)
	if err != nil || !tentative.Ended() || o.Ended() || o.N != 1 || tentative.N != 2 {
		t.Errorf("got %v and %v, %v", o, tentative, err)
	}
	if back, err := tentative.Next(Start); err == nil || back != tentative {
		t.Errorf("a refused event moved %v to %v", tentative, back)
	}
}

func TestTableShowsEveryRow(t *testing.T) {
	rows := strings.Split(strings.TrimSuffix(Table(), "\n"), "\n")
	if len(rows) != len(transitions)+2 || !slices.Contains(rows, "| timed_out | `worker_terminated` | terminated |") {
		t.Errorf("got\n%s", Table())
	}
}
