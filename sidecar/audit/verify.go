package audit

import (
	"bytes"
	"fmt"
	"maps"
)

// Verifier checks a trail row by row in bounded memory: chain, gaps, columns against bodies, legal orders.
type Verifier struct {
	head   Head
	resume func(Entry) (Order, error)
	orders map[string]Order
	bound  int // orders held before those that could have ended are forgotten
}

// NewVerifier starts behind from. resume returns the order of an entry's job just before that entry. It is asked about
// jobs that began before from, and about those that the verifier forgot because their order could have ended.
func NewVerifier(from Head, resume func(Entry) (Order, error)) *Verifier {
	return &Verifier{head: from, resume: resume, orders: map[string]Order{}, bound: 4096}
}

// Head returns the last row that was right.
func (v *Verifier) Head() Head { return v.head }

// Add checks the next row and returns what its body says. Its first error, a *[Fault] or one of resume, is final.
func (v *Verifier) Add(r Row) (Entry, error) {
	fault := func(format string, args ...any) (Entry, error) {
		return Entry{}, &Fault{Seq: r.Seq, Job: r.Job, Reason: fmt.Sprintf(format, args...)}
	}
	if r.Seq != v.head.Seq+1 {
		return fault("follows event %d", v.head.Seq)
	}
	next := v.head.Next(r.Body)
	if !bytes.Equal(next.Hash, r.Hash) {
		return fault("the hash over its body and its predecessor differs")
	}
	e, err := Decode(r.Body)
	if err != nil {
		return fault("%v", err)
	}
	if e.Columns() != r.Columns {
		return fault("the columns say %v, the body %v", r.Columns, e.Columns())
	}
	v.head = next
	if e.Job == "" {
		return e, nil
	}
	o, held := v.orders[e.Job]
	if !held && e.N > 1 {
		if o, err = v.resume(e); err != nil {
			return Entry{}, err
		}
	}
	if e.N != o.N+1 {
		return fault("is number %d of its job, after %d", e.N, o.N)
	}
	if o, err = o.Next(e.Kind); err != nil {
		return fault("%v", err)
	}
	v.keep(e.Job, o)
	return e, nil
}

// keep bounds the memory: a job whose order could have ended is asked for again should it go on.
func (v *Verifier) keep(job string, o Order) {
	v.orders[job] = o
	if len(v.orders) > v.bound {
		maps.DeleteFunc(v.orders, func(_ string, o Order) bool { return o.State != Allowed && o.State != Started })
	}
}
