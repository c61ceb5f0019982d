package job

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/eda-sidecar/eda-sidecar/sidecar/audit"
	"github.com/eda-sidecar/eda-sidecar/sidecar/ledger"
	"github.com/eda-sidecar/eda-sidecar/sidecar/lock"
	"github.com/eda-sidecar/eda-sidecar/sidecar/txn"
)

// SessionTool is the tool name under which sessions are made and destroyed, in events and metrics.
const SessionTool = "session"

// session finds the session that the call works in. The default one need not be there yet: its first commit makes it.
func (c *call) session() (ledger.Session, error) {
	id := c.req.Session
	if id == "" {
		if !c.mutates {
			return ledger.Session{}, nil
		}
		id = DefaultSession
	}
	if id != DefaultSession {
		return c.Runner.Session(context.Background(), Who{Name: c.req.Principal}, id)
	}
	row, err := c.ledger.SessionByName(context.Background(), c.req.Principal, DefaultSession)
	if errors.Is(err, ledger.ErrNotFound) {
		return ledger.Session{ID: c.minted, Owner: c.req.Principal, Name: DefaultSession}, nil
	}
	return row, err
}

// Session returns a living session that who may ask for: SESSION_NOT_FOUND also for another one.
func (r *Runner) Session(ctx context.Context, who Who, id string) (ledger.Session, error) {
	row, err := r.ledger.Session(ctx, id)
	switch {
	case err != nil && !errors.Is(err, ledger.ErrNotFound):
		return ledger.Session{}, err
	case err != nil || !who.sees(row.Owner):
		return ledger.Session{}, fail(SessionNotFound, fmt.Sprintf("use session %q", id), errors.New("there is none of this id"))
	case !row.DestroyedAt.IsZero():
		return ledger.Session{}, fail(SessionDestroyed, fmt.Sprintf("use session %q", id), errors.New("it was destroyed"))
	}
	return row, nil
}

// OpenSession returns the principal's session of this name, and makes it if there is none. Without a name it makes one that
// only its id finds.
func (r *Runner) OpenSession(ctx context.Context, principal, name string) (ledger.Session, error) {
	if len(name) > 128 || !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl) {
		return ledger.Session{}, failf(InvalidArgument, "use session name %.40q: want at most 128 bytes of UTF-8 without control characters", name)
	}
	for try := 0; ; try++ {
		row, err := r.ledger.SessionByName(ctx, principal, name)
		if !errors.Is(err, ledger.ErrNotFound) {
			return row, err
		}
		row = ledger.Session{ID: uuid.Must(uuid.NewV7()).String(), Owner: principal, Name: name}
		switch err := r.sessionOp(row, principal); {
		case err == nil:
			return r.ledger.Session(ctx, row.ID)
		case !errors.Is(err, ledger.ErrStale) || try == 10: // somebody else made it at the same time, and may have closed it since
			return ledger.Session{}, err
		}
	}
}

// CloseSession destroys a session for good: it waits for its running job, writes the tombstone, and then fails those
// that wait for the session. Nobody hears SESSION_DESTROYED before it is true.
func (r *Runner) CloseSession(ctx context.Context, who Who, id string) error {
	row, err := r.Session(ctx, who, id)
	if err != nil {
		return err
	}
	finish, err := r.table.Destroy(ctx.Done(), lock.Owner{Session: id, Tool: SessionTool, Principal: who.Name, Since: r.o.Now().UnixMilli()}, SessionKey(row))
	if err != nil {
		return err
	}
	tombstoned := false
	defer func() { finish(tombstoned) }()
	if row, err = r.Session(ctx, who, id); err != nil {
		return err
	}
	row.DestroyedAt = r.o.Now()
	err = r.sessionOp(row, who.Name)
	tombstoned = err == nil
	return err
}

// sessionOp makes or destroys a session, with its two events, which are its owner's. They say by whom, if that is another.
func (r *Runner) sessionOp(row ledger.Session, by string) error {
	event := func(k audit.Kind, op string) audit.Event {
		data := map[string]any{"op": op}
		if by != row.Owner {
			data["by"] = by
		}
		return audit.Event{Kind: k, Job: uuid.Must(uuid.NewV7()).String(), Session: row.ID, Tool: SessionTool, Principal: row.Owner, Data: data}
	}
	op := "create"
	if !row.DestroyedAt.IsZero() {
		op = "destroy"
	}
	allow, commit := event(audit.Allow, op), event(audit.Commit, op)
	commit.Job = allow.Job
	began := r.o.Now()
	ticket, err := r.ledger.SessionOp(row, allow, commit)
	if err == nil {
		err = r.await(ticket)
	}
	res := Result{Code: OK, Tool: SessionTool, Job: allow.Job, Session: row.ID, Duration: r.o.Now().Sub(began).Milliseconds()}
	if err != nil {
		err = or(AuditUnavailable, fmt.Sprintf("%s session %q", op, cmp.Or(row.Name, row.ID)), err)
		res.Code = asError(err).Code
	}
	r.finished(res, Times{})
	return err
}

// SessionKey is the key of a session. A default session may have no id yet, so its key is owner and name.
func SessionKey(row ledger.Session) lock.Key {
	if row.Name == DefaultSession {
		return lock.Session(DefaultSession + "\x00" + row.Owner)
	}
	return lock.Session(row.ID)
}

// PathKey is the key of a target, from its way from the root.
func PathKey(chain []txn.Edge) lock.Key {
	edges := make([]lock.Edge, len(chain))
	for i, e := range chain {
		edges[i] = lock.Edge(e)
	}
	return lock.Path(edges)
}

// vars is the clone of the session's vars that a process may read.
func (c *call) vars() []byte {
	vars := c.state.Vars
	if vars == nil {
		vars = map[string]any{}
	}
	b, err := json.Marshal(vars)
	if err != nil {
		return []byte("{}") // cannot happen: vars were decoded from JSON
	}
	return b
}
