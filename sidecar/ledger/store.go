package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/eda-sidecar/eda-sidecar/sidecar/audit"
	"github.com/eda-sidecar/eda-sidecar/sidecar/ledger/batch"
)

// store is the batch.Store on SQLite: one pinned connection that only the writer uses.
//
// Every statement runs under context.Background: a cancelled context interrupts the statement, so one job's cancel
// would fail its neighbours' batch.
type store struct {
	db        *sql.DB
	conn      *sql.Conn
	stmts     map[string]*sql.Stmt
	fault     func(point string) error
	places    []place
	workspace string
	epoch     int64
	commits   int64
	// of the running transaction, read in each: nothing to restore after one that failed
	head audit.Head
}

// change is the payload of an operation: what it does beside adding events, the first of which gets the number first.
type change func(s *store, first int64) error

// update is a change of one row; if there is none, the operation is refused because of why.
func update(why error, query string, args ...any) change {
	return func(s *store, _ int64) error { return s.one(why, query, args...) }
}

// place is a file of the ledger as it was opened.
type place struct {
	path string
	was  os.FileInfo
}

// keep remembers the file at a path.
func (s *store) keep(path string) error {
	was, err := os.Stat(path)
	s.places = append(s.places, place{path, was})
	return err
}

// inPlace says whether each path still leads to the file that was opened: what goes into another is lost.
func (s *store) inPlace() error {
	for _, p := range s.places {
		is, err := os.Stat(p.path)
		switch {
		case errors.Is(err, os.ErrPermission): // a mode was taken: where the file is, cannot be known, and whoever opens it next gives it back
		case err != nil:
			return fmt.Errorf("%w: %w: %w", batch.ErrMoved, batch.ErrAbsent, err)
		case !os.SameFile(p.was, is):
			return fmt.Errorf("%q: %w: %w", p.path, batch.ErrMoved, batch.ErrAbsent)
		}
	}
	return nil
}

// Begin starts a transaction, and poisons if the files were replaced or another process has opened the ledger since.
func (s *store) Begin() (err error) {
	defer panicked(&err)
	if err := s.inPlace(); err != nil {
		return err
	}
	if _, err := s.exec("BEGIN IMMEDIATE"); err != nil {
		return err
	}
	var epoch int64
	if err := s.row(sqlHead, &epoch, &s.head.Seq, &s.head.Hash); err != nil {
		return err
	}
	if epoch != s.epoch {
		s.Rollback() // SQLite is well; an open transaction would lock the new owner out
		return fmt.Errorf("epoch %d, ours is %d: %w", epoch, s.epoch, ErrFenced)
	}
	return nil
}

// Apply does one operation in a savepoint; if it is refused its neighbours go on.
func (s *store) Apply(op batch.Op) (err error) {
	defer panicked(&err)
	head := s.head
	if _, err := s.exec("SAVEPOINT op"); err != nil {
		return err
	}
	err = s.apply(op)
	if errors.Is(err, batch.ErrRefused) {
		s.head = head
		if _, undo := s.exec("ROLLBACK TO op"); undo != nil {
			return undo
		}
	}
	if err == nil || errors.Is(err, batch.ErrRefused) {
		if _, release := s.exec("RELEASE op"); release != nil {
			return release
		}
	}
	return err
}

func (s *store) apply(op batch.Op) error {
	first := s.head.Seq + 1
	for _, e := range op.Events {
		body, err := audit.Encode(audit.Entry{Event: e, Seq: s.head.Seq + 1, Workspace: s.workspace})
		if err != nil {
			return fmt.Errorf("%w: %w", batch.ErrRefused, err)
		}
		s.head = s.head.Next(body)
		_, err = s.exec(sqlEvent, s.head.Seq, null(e.Job), null(e.Session), string(e.Kind), null(e.Tool), null(e.Principal),
			e.At.UnixNano(), string(body), s.head.Hash)
		if err != nil {
			return err
		}
	}
	if change, ok := op.Payload.(change); ok {
		return change(s, first)
	}
	return nil
}

// saveSession compares and sets: the row must still be of the generation that s was cloned from.
func (s *store) saveSession(row Session, job string, state []byte, now int64) error {
	if row.Generation == 0 {
		_, err := s.exec(sqlInsert, row.ID, row.Owner, row.Name, job, string(state), now, now)
		if errors.Is(err, batch.ErrRefused) {
			err = fmt.Errorf("%w: %w", ErrStale, err)
		}
		return err
	}
	var destroyed any
	if !row.DestroyedAt.IsZero() {
		destroyed = row.DestroyedAt.UnixNano()
	}
	return s.one(ErrStale, sqlUpdate, job, string(state), now, destroyed, row.ID, row.Generation)
}

// Commit is the commit point of every operation of the batch.
func (s *store) Commit() (err error) {
	defer panicked(&err)
	if err := s.inPlace(); err != nil {
		return err
	}
	s.commits++
	_, err = s.exec("COMMIT")
	return err
}

// Rollback ends a transaction. SQLite may have done so itself (after FULL); if it could not be ended the next BEGIN
// fails, and that poisons.
func (s *store) Rollback() {
	_, _ = s.exec("ROLLBACK") // see above
}

// exec runs one statement of this package and returns how many rows it changed.
func (s *store) exec(query string, args ...any) (rows int64, err error) {
	if err := s.at("before " + query); err != nil {
		return 0, fate(query, err)
	}
	stmt, err := s.prepare(query)
	if err != nil {
		return 0, fate(query, err)
	}
	r, err := stmt.ExecContext(context.Background(), args...)
	if err != nil {
		return 0, fate(query, err)
	}
	if err := s.at("after " + query); err != nil {
		return 0, fate(query, err)
	}
	return r.RowsAffected()
}

// one is exec for a statement that must change one row; if it does not, the operation is refused because of why.
func (s *store) one(why error, query string, args ...any) error {
	rows, err := s.exec(query, args...)
	if err == nil && rows != 1 {
		err = fmt.Errorf("%w: %w", batch.ErrRefused, why)
	}
	return err
}

func (s *store) row(query string, into ...any) error {
	stmt, err := s.prepare(query)
	if err != nil {
		return fate(query, err)
	}
	return fate(query, stmt.QueryRowContext(context.Background()).Scan(into...))
}

func (s *store) prepare(query string) (*sql.Stmt, error) {
	if stmt, ok := s.stmts[query]; ok {
		return stmt, nil
	}
	stmt, err := s.conn.PrepareContext(context.Background(), query)
	if err == nil {
		s.stmts[query] = stmt
	}
	return stmt, err
}

func (s *store) at(point string) error {
	if s.fault == nil {
		return nil
	}
	return s.fault(point)
}

// Primary result codes of SQLite (https://sqlite.org/rescode.html).
const (
	codeBusy       = 5
	codeReadonly   = 8
	codeCorrupt    = 11
	codeFull       = 13
	codeNoShm      = 10 | 19<<8 // SQLITE_IOERR_SHMSIZE: no room for the index of the log
	codeCantOpen   = 14
	codeConstraint = 19
	codeNotADB     = 26
)

// code returns SQLite's primary result code in err, or -1.
func code(err error) int {
	var c interface{ Code() int }
	if errors.As(err, &c) {
		return c.Code() & 0xff
	}
	return -1
}

// fate says what an error of SQLite means for the transaction (20-transaction.md section 4). What it does not know
// it passes on bare, and that poisons: after an I/O error, or a NOMEM that followed the synced commit frame, the
// process sees the transaction absent although the reopened ledger may have it.
func fate(query string, err error) error {
	switch c := code(err); {
	case err == nil:
		return nil
	case c == codeConstraint && query != "COMMIT":
		return fmt.Errorf("%.40s: %w: %w", query, batch.ErrRefused, err)
	case c == codeFull: // from writing frames, before the commit frame is whole
		return fmt.Errorf("%.40s: %w: %w: %w", query, batch.ErrAbsent, syscall.ENOSPC, err)
	case c == codeBusy, c == codeConstraint:
		return fmt.Errorf("%.40s: %w: %w", query, batch.ErrAbsent, err)
	}
	return fmt.Errorf("%.40s: %w", query, err)
}

// panicked turns a panic of the driver into an error that poisons.
func panicked(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("internal error: the SQL driver panicked: %v", p)
	}
}

func null(s string) sql.NullString { return sql.NullString{String: s, Valid: s != ""} }
