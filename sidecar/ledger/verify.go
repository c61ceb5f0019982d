package ledger

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/eda-sidecar/eda-sidecar/sidecar/audit"
	"github.com/eda-sidecar/eda-sidecar/sidecar/session"
	"github.com/eda-sidecar/eda-sidecar/sidecar/txn"
)

// Report is what Verify looked at. Head is for anchoring elsewhere.
type Report struct {
	Head                   audit.Head
	Events, Jobs, Sessions int64
}

// Verify checks everything that the ledger says about itself, in memory that does not grow with it: the chain and
// legal orders of the events that are kept; phase committed exactly where there is one commit event, and likewise
// rolled_back; the journals of jobs that are not retired; each session's generation and state as its last commit
// says, and no session gone that was not destroyed; the schema. It returns the first fault as an *[audit.Fault]. It may
// run beside the writer.
func (r *Reader) Verify(ctx context.Context) (Report, error) {
	for {
		before, err := r.pruned(ctx)
		if err != nil {
			return Report{}, err
		}
		report, err := r.verify(ctx, before)
		after, errAfter := r.pruned(ctx)
		if err == nil || errAfter != nil || after.Seq == before.Seq { // else events went while we read
			return report, errors.Join(err, errAfter)
		}
	}
}

func (r *Reader) verify(ctx context.Context, pruned audit.Head) (report Report, err error) {
	v, err := r.verifier(ctx, pruned.Seq)
	if err != nil {
		return report, err
	}
	err = r.Events(ctx, Query{After: pruned.Seq}, func(rec Record) error {
		e, err := v.Add(rec.Row)
		if err == nil && e.Kind == audit.Commit && e.N > 2 && !rec.HasJob {
			err = &audit.Fault{Seq: e.Seq, Job: e.Job, Reason: "the row of the job is gone"}
		}
		if err == nil && e.Kind == audit.Commit && e.Session != "" && !rec.HasSession {
			err = r.destroyed(ctx, e)
		}
		report.Events++
		return err
	})
	report.Head = v.Head()
	if err != nil {
		return report, err
	}
	if report.Jobs, err = pages(ctx, r, scanPhase, sqlPhases, func(p phase) (string, error) {
		commits, rollbacks := 0, 0
		if p.phase == txn.Committed {
			commits = 1
		}
		if p.phase == txn.RolledBack {
			rollbacks = 1
		}
		if (p.commits != commits || p.rollbacks != rollbacks) && p.firstSeq > pruned.Seq {
			return p.id, &audit.Fault{Seq: p.firstSeq, Job: p.id, Reason: fmt.Sprintf("phase %s, but %d commit and %d rollback events", p.phase, p.commits, p.rollbacks)}
		}
		return p.id, p.journal()
	}); err != nil {
		return report, err
	}
	report.Sessions, err = pages(ctx, r, scanClaim, sqlClaims, func(c claim) (string, error) {
		if reason := c.fault(pruned.Seq > 0); reason != "" {
			return c.id, &audit.Fault{Job: c.job, Reason: fmt.Sprintf("session %q: %s", c.id, reason)}
		}
		return c.id, nil
	})
	if err == nil {
		err = r.schema(ctx)
	}
	return report, err
}

// destroyed checks that a session without a row was destroyed, as pruning takes the rows of no others. A commit right
// behind its allow is no job's: generation 1 made the session, any other destroyed it.
func (r *Reader) destroyed(ctx context.Context, named audit.Entry) error {
	body, err := only(query(ctx, r.db, scan[[]byte], sqlLast, named.Session))
	if err != nil {
		return err
	}
	if last, err := audit.Decode(body); err != nil || last.N > 2 || last.Data["new_gen"] == json.Number("1") {
		return &audit.Fault{Seq: named.Seq, Job: named.Job, Reason: fmt.Sprintf("the row of session %q is gone", named.Session)}
	}
	return nil
}

// schema compares every table, index and trigger with those that Open makes.
func (r *Reader) schema(ctx context.Context) (err error) {
	fresh, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, fresh.Close()) }()
	fresh.SetMaxOpenConns(1) // each has a memory of its own
	if _, err := fresh.ExecContext(ctx, schema+triggers); err != nil {
		return err
	}
	want, err := query(ctx, fresh, scan[string], sqlSchema)
	if err != nil {
		return err
	}
	got, err := query(ctx, r.db, scan[string], sqlSchema)
	if err != nil {
		return err
	}
	for _, s := range want {
		if !slices.Contains(got, s) {
			return &audit.Fault{Reason: fmt.Sprintf("the schema lacks %q", s)}
		}
	}
	for _, s := range got {
		if !slices.Contains(want, s) {
			return &audit.Fault{Reason: fmt.Sprintf("the schema also has %.200q", s)}
		}
	}
	return nil
}

// pages calls fn with each row of a query that takes the last id and a limit; fn returns the row's id.
func pages[T any](ctx context.Context, r *Reader, scan func(*sql.Rows, *T) error, q string, fn func(T) (id string, err error)) (n int64, err error) {
	const size = 100 // rows with a state each
	for after := ""; ; {
		page, err := query(ctx, r.db, scan, q, after, size)
		if err != nil {
			return n, err
		}
		for _, t := range page {
			if after, err = fn(t); err != nil {
				return n, err
			}
			n++
		}
		if len(page) < size {
			return n, nil
		}
	}
}

type phase struct {
	id                 string
	phase              txn.Phase
	firstSeq           int64
	commits, rollbacks int
	doc                []byte // of a job that is not retired
}

func scanPhase(rows *sql.Rows, p *phase) error {
	return rows.Scan(&p.id, &p.phase, &p.firstSeq, &p.commits, &p.rollbacks, &p.doc)
}

// journal checks the document by which recovery, or the deletion of backups, will go.
func (p phase) journal() error {
	if p.doc == nil {
		return nil
	}
	j, err := txn.DecodeJournal(p.doc)
	if err == nil && j.Job != p.id {
		err = fmt.Errorf("it is of job %q: %w", j.Job, txn.ErrDocument)
	}
	if err != nil {
		return &audit.Fault{Seq: p.firstSeq, Job: p.id, Reason: err.Error()}
	}
	return nil
}

// claim is a session and the body of its last commit event, nil if there is none.
type claim struct {
	id, job     string
	generation  int64
	state, body []byte
}

func scanClaim(rows *sql.Rows, c *claim) error {
	return rows.Scan(&c.id, &c.job, &c.generation, &c.state, &c.body)
}

func (c claim) fault(pruned bool) string {
	if c.body == nil {
		if pruned {
			return ""
		}
		return "no event committed it"
	}
	e, err := audit.Decode(c.body)
	if err != nil {
		return err.Error()
	}
	if gen := json.Number(strconv.FormatInt(c.generation, 10)); e.Data["new_gen"] != gen || e.Job != c.job {
		return fmt.Sprintf("generation %s of job %q, its last commit says %v of %q", gen, c.job, e.Data["new_gen"], e.Job)
	}
	if e.Data["state_sha256"] != session.Digest(c.state) {
		return "its state is not the one that was committed"
	}
	return ""
}

// verifier returns one that starts behind event from.
func (r *Reader) verifier(ctx context.Context, from int64) (*audit.Verifier, error) {
	head, err := r.pruned(ctx)
	if err != nil {
		return nil, err
	}
	if from > head.Seq {
		head.Seq = from
		if head.Hash, err = only(query(ctx, r.db, scan[[]byte], sqlHashOf, from)); err != nil {
			return nil, fmt.Errorf("event %d: %w", from, err)
		}
	}
	return audit.NewVerifier(head, func(e audit.Entry) (audit.Order, error) {
		o, err := r.order(ctx, e.Job, e.Seq)
		if o.N != e.N-1 && head.Seq > 0 {
			o = audit.Unknown(e.N - 1) // its first events were pruned
		}
		return o, err
	}), nil
}

// order replays what a job's events below before say.
func (r *Reader) order(ctx context.Context, job string, before int64) (o audit.Order, err error) {
	kinds, err := query(ctx, r.db, scan[string], `SELECT kind FROM events WHERE job = ? AND seq < ? ORDER BY seq`, job, before)
	for _, k := range kinds {
		if err == nil {
			o, err = o.Next(audit.Kind(k))
		}
	}
	if errors.Is(err, audit.ErrOrder) {
		return audit.Unknown(len(kinds)), nil // its first events were pruned
	}
	return o, err
}

// pruned returns the newest event that pruning removed; the zero Head: none.
func (r *Reader) pruned(ctx context.Context) (head audit.Head, err error) {
	seq, err := r.meta(ctx, "pruned_seq")
	if err != nil {
		return head, err
	}
	hash, err := r.meta(ctx, "pruned_hash")
	if err != nil {
		return head, err
	}
	if head.Seq, err = strconv.ParseInt(seq, 10, 64); err == nil && hash != "" {
		head.Hash, err = hex.DecodeString(hash)
	}
	return head, err
}
