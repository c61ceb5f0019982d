package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
	_ "modernc.org/sqlite" // the driver

	"github.com/eda-sidecar/eda-sidecar/sidecar/audit"
	"github.com/eda-sidecar/eda-sidecar/sidecar/ledger/batch"
	"github.com/eda-sidecar/eda-sidecar/sidecar/txn"
)

const fileName = "ledger.db"

// Opening is what Open found. The caller writes Epoch into owner.lock and syncs it before anything else is done.
type Opening struct {
	Workspace string
	Epoch     int64    // of this opening
	Fresh     bool     // there was no ledger
	Restored  bool     // the ledger is older than owner.lock says: quarantine its open jobs
	Disagree  []string // open jobs whose phase is not what their events say: quarantine them
	Warnings  []string
}

type pragma struct{ name, value, reads string } // reads: as SQLite gives it back; none: no row

// writerPragmas are set once and read back. WAL: readers go on while the writer commits. FULL: a COMMIT is one fsync of
// the log. No auto-checkpoint: the writer does it between rounds. temp_store: savepoints would spill to /tmp. No mmap:
// it turns an I/O error into SIGBUS.
func writerPragmas() []pragma {
	return []pragma{
		{"busy_timeout", "10000", "10000"},
		{"synchronous", "FULL", "2"},
		{"wal_autocheckpoint", "0", "0"},
		{"temp_store", "MEMORY", "2"},
		{"cache_spill", "OFF", "0"},
		{"mmap_size", "0", "0"},
		{"trusted_schema", "OFF", "0"},
		{"journal_mode", "WAL", "wal"},
	}
}

func readerPragmas() []pragma {
	return []pragma{
		{"busy_timeout", "10000", "10000"},
		{"query_only", "ON", "1"},
		{"temp_store", "MEMORY", "2"},
		{"mmap_size", "0", "0"},
		{"trusted_schema", "OFF", "0"},
	}
}

// dsn names the database. Defensive: no statement can corrupt the file. dqs: "x" is never a string.
func dsn(path, mode string, pragmas ...pragma) string {
	q := url.Values{"_defensive": {"1"}, "_dqs": {"0"}, "mode": {mode}}
	for _, p := range pragmas {
		q.Add("_pragma", p.name+"("+p.value+")")
	}
	return (&url.URL{Scheme: "file", Path: path, RawQuery: q.Encode()}).String()
}

// Open opens the ledger of a workspace, whose owner lock the caller holds, before anything of the workspace is
// decided: it makes durable what it can read, checks it, and starts a new epoch. After an error nothing was changed
// and the file is left open, as closing it would checkpoint it: the process should end.
func Open(ctx context.Context, o Options) (*Ledger, error) {
	l, err := open(ctx, o)
	if err != nil {
		return nil, openError(o.Dir, err)
	}
	l.prune() // a command may end before the writer's turn
	go l.write()
	return l, nil
}

// openError says what is wrong with a ledger that does not open.
func openError(dir string, err error) error {
	var extended interface{ Code() int }
	switch c := code(err); {
	case c == codeCorrupt, c == codeNotADB, errors.Is(err, audit.ErrTrail), errors.Is(err, ErrNotFound):
		err = fmt.Errorf("%w: %w", ErrDamaged, err)
	case c == codeReadonly, c == codeCantOpen:
		err = fmt.Errorf("%w: %w", ErrAccess, err)
	case c == codeFull, errors.As(err, &extended) && extended.Code() == codeNoShm:
		err = fmt.Errorf("%w: %w", syscall.ENOSPC, err)
	}
	return fmt.Errorf("open the ledger in %q: %w", dir, err)
}

// Look is Open that changes nothing: it returns the Opening that Open would make, and a reader. ErrEmpty says that Open
// would make a ledger.
func Look(ctx context.Context, o Options) (*Reader, Opening, error) {
	r, err := openReader(o.Dir)
	if errors.Is(err, ErrEmpty) && o.Used {
		err = ErrFresh
	}
	if err != nil {
		return nil, Opening{}, openError(o.Dir, err)
	}
	opening, err := r.look(ctx, o)
	if err != nil {
		return nil, opening, errors.Join(openError(o.Dir, err), r.Close())
	}
	return r, opening, nil
}

func (r *Reader) look(ctx context.Context, o Options) (opening Opening, err error) {
	if opening.Workspace, err = r.meta(ctx, "workspace_id"); err == nil {
		err = o.claims(opening.Workspace)
	}
	if err == nil {
		err = quickCheck(ctx, r.db)
	}
	if err == nil {
		_, opening.Disagree, err = r.verifyOpen(ctx)
	}
	if err != nil {
		return opening, err
	}
	text, err := r.meta(ctx, "epoch")
	if err != nil {
		return opening, err
	}
	epoch, err := strconv.ParseInt(text, 10, 64)
	opening.Epoch, opening.Restored = max(epoch, o.LockEpoch)+1, epoch < o.LockEpoch
	return opening, err
}

// open is Open without its writer. After an error the Ledger, if any, holds what was opened.
func open(ctx context.Context, o Options) (*Ledger, error) {
	o = o.withDefaults()
	path := filepath.Join(o.Dir, fileName)
	if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) && o.Used {
		return nil, ErrFresh // before one is made
	}
	if err := createFile(o.Dir, path); err != nil {
		return nil, err
	}
	s := &store{stmts: map[string]*sql.Stmt{}, fault: o.Fault}
	l := &Ledger{o: o, store: s, queue: batch.New(o.Sinks...), ended: make(chan struct{})}
	l.closed = sync.OnceValue(l.closeFiles)
	if err := errors.Join(s.keep(path), s.connect(ctx, path)); err != nil {
		return l, err
	}
	// (a) whose file it is
	version, err := identify(ctx, s.conn)
	if err != nil {
		return l, err
	}
	if err := l.claim(ctx, version); err != nil {
		return l, err
	}
	// (b) what is read is made durable before it is believed
	if err := s.redirty(path + "-wal"); err != nil {
		return l, err
	}
	if err := l.check(ctx); err != nil {
		return l, err
	}
	if err := s.keep(path + "-wal"); err != nil {
		return l, err
	}
	if l.Reader, err = openReader(o.Dir); err != nil {
		return l, err
	}
	// (c) the chain, as far back as a job is open
	known, disagree, err := l.verifyOpen(ctx)
	if err != nil {
		return l, err
	}
	l.opening.Disagree = disagree
	// (d) a new epoch
	return l, l.begin(known)
}

func (o Options) withDefaults() Options {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Retention == 0 {
		o.Retention = 90 * 24 * time.Hour
	}
	if o.RetentionEvents == 0 {
		o.RetentionEvents = 1 << 20
	}
	return o
}

// createFile makes the file before SQLite does: it would make it readable by all. -wal and -shm copy the mode.
// An existing file is not opened: closing any descriptor of it drops the locks of this process.
func createFile(dir, path string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// connect pins the writer's connection: an unpinned sql.DB reconnects behind one's back.
func (s *store) connect(ctx context.Context, path string) error {
	db, err := sql.Open("sqlite", dsn(path, "rw"))
	if err != nil {
		return err
	}
	db.SetMaxOpenConns(1)
	s.db = db
	s.conn, err = db.Conn(ctx)
	return err
}

// close closes the writer's connection: SQLite checkpoints and removes the log if it is the last.
func (s *store) close() error {
	var errs []error
	for _, stmt := range s.stmts {
		errs = append(errs, stmt.Close())
	}
	return errors.Join(append(errs, s.conn.Close(), s.db.Close())...)
}

// claim sets the pragmas, makes a fresh ledger, and refuses that of another workspace.
func (l *Ledger) claim(ctx context.Context, version int) error {
	s := l.store
	if l.opening.Fresh = version == 0; l.opening.Fresh && l.o.Used {
		return ErrFresh
	}
	for _, p := range writerPragmas() {
		if err := p.set(ctx, s.conn); err != nil {
			return err
		}
	}
	if version == 0 {
		if s.workspace = l.o.Workspace; s.workspace == "" {
			s.workspace = uuid.NewString()
		}
		if err := s.create(); err != nil {
			return err
		}
	}
	if err := s.row(sqlWorkspace, &s.workspace); err != nil {
		return err
	}
	l.opening.Workspace = s.workspace
	return l.o.claims(s.workspace)
}

// claims refuses the ledger of another workspace.
func (o Options) claims(workspace string) error {
	if o.Workspace != "" && o.Workspace != workspace {
		return fmt.Errorf("%q, not %q: %w", workspace, o.Workspace, ErrWorkspace)
	}
	return nil
}

// identify returns the version of the schema; 0: an empty file. An older one would be led to the newest behind check.
func identify(ctx context.Context, db querier) (version int, err error) {
	var found [3]int64
	for i, q := range [...]string{"PRAGMA application_id", "PRAGMA user_version", "SELECT COUNT(*) FROM sqlite_schema"} {
		if found[i], err = only(query(ctx, db, scan[int64], q)); err != nil {
			return 0, err
		}
	}
	application, version, tables := found[0], int(found[1]), found[2]
	switch {
	case application == 0 && version == 0 && tables == 0:
		return 0, nil
	case application != applicationID || version == 0:
		return 0, fmt.Errorf("application id %#x, version %d: %w", application, version, ErrDamaged)
	case version > schemaVersion:
		return 0, fmt.Errorf("version %d: %w", version, ErrNewer)
	}
	return version, nil
}

// set sets a pragma and reads it back: SQLite ignores what it does not know.
func (p pragma) set(ctx context.Context, db querier) error {
	if _, err := query(ctx, db, scan[string], "PRAGMA "+p.name+" = "+p.value); err != nil {
		return err
	}
	return p.check(ctx, db)
}

func (p pragma) check(ctx context.Context, db querier) error {
	got, err := query(ctx, db, scan[string], "PRAGMA "+p.name)
	if err == nil && !slices.Equal(got, []string{p.reads}) {
		err = fmt.Errorf("pragma %s reads %q, not %q", p.name, got, p.reads)
	}
	return err
}

// create makes the tables of a fresh ledger.
func (s *store) create() error {
	_, err := s.exec("BEGIN IMMEDIATE")
	for _, q := range []string{
		schema, triggers, fmt.Sprintf("PRAGMA application_id = %d", applicationID), fmt.Sprintf("PRAGMA user_version = %d", schemaVersion),
	} {
		if err == nil {
			_, err = s.conn.ExecContext(context.Background(), q)
		}
	}
	if err == nil {
		_, err = s.exec(sqlClaim, s.workspace)
	}
	if err == nil {
		_, err = s.exec("COMMIT")
	}
	if err != nil {
		s.Rollback()
		return fmt.Errorf("make the tables: %w", err)
	}
	return nil
}

// redirty writes the log's bytes back in place and syncs them. After a failed sync the page cache shows frames that the
// disk lacks, and a sync of clean pages succeeds: what is read there might be gone after the next loss of power.
func (s *store) redirty(wal string) error {
	if _, err := s.exec("BEGIN IMMEDIATE"); err != nil {
		return err
	}
	defer s.Rollback()
	f, err := os.OpenFile(wal, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = io.Copy(io.NewOffsetWriter(f, 0), io.NewSectionReader(f, 0, math.MaxInt64)) // 32 KiB at a time
	return errors.Join(err, f.Sync(), f.Close())
}

// check has SQLite look at the whole file, then moves the log into it. A reader in the way is only worth a warning.
func (l *Ledger) check(ctx context.Context) error {
	if err := quickCheck(ctx, l.store.conn); err != nil {
		return err
	}
	busy, err := l.store.checkpoint("TRUNCATE")
	if busy {
		l.opening.Warnings = append(l.opening.Warnings, "a reader keeps the log from being moved into the ledger")
	}
	return err
}

func quickCheck(ctx context.Context, db querier) error {
	found, err := query(ctx, db, scan[string], "PRAGMA quick_check(1)")
	if err != nil || len(found) != 1 || found[0] != "ok" {
		return errors.Join(fmt.Errorf("quick check says %q: %w", found, ErrDamaged), err)
	}
	return nil
}

// checkpoint moves the log into the file; busy: a reader kept a part of it back.
func (s *store) checkpoint(mode string) (busy bool, err error) {
	defer panicked(&err)
	var frames, moved int
	const q = "PRAGMA wal_checkpoint"
	if err := s.at("before " + q); err != nil {
		return false, fate(q, err)
	}
	err = s.conn.QueryRowContext(context.Background(), q+"("+mode+")").Scan(&busy, &frames, &moved)
	return busy, fate(q, err)
}

// verifyOpen checks the chain from the first event of an open job on, and returns the orders of the open jobs, and those
// whose phase is not what their events say.
func (r *Reader) verifyOpen(ctx context.Context) (known map[string]audit.Order, disagree []string, err error) {
	open, err := r.OpenJobs(ctx)
	if err != nil {
		return nil, nil, err
	}
	head, err := r.Head(ctx)
	if err != nil {
		return nil, nil, err
	}
	from, known := head.Seq, map[string]audit.Order{}
	for _, j := range open {
		from, known[j.ID] = min(from, j.FirstSeq), audit.Order{}
	}
	v, err := r.verifier(ctx, from-1)
	if err != nil {
		return nil, nil, err
	}
	err = r.Events(ctx, Query{After: from - 1}, func(rec Record) error {
		e, err := v.Add(rec.Row)
		if o, isOpen := known[e.Job]; err == nil && isOpen {
			known[e.Job], err = o.Next(e.Kind)
		}
		return err
	})
	for _, j := range open {
		if (j.Phase == txn.Committed) != (known[j.ID].State == audit.Committed) {
			disagree = append(disagree, j.ID)
		}
	}
	return known, disagree, err
}

// begin starts the epoch, with the events that say so.
func (l *Ledger) begin(known map[string]audit.Order) error {
	s := l.store
	if err := s.row(sqlEpoch, &s.epoch); err != nil {
		return err
	}
	epoch := max(s.epoch, l.o.LockEpoch) + 1
	l.opening.Epoch, l.opening.Restored = epoch, s.epoch < l.o.LockEpoch
	var events []audit.Event
	if l.opening.Restored {
		events = append(events, audit.Event{Kind: audit.LedgerRestored, Data: map[string]any{"epoch": s.epoch, "lock_epoch": l.o.LockEpoch}})
	}
	events = append(events, audit.Event{Kind: audit.LedgerOpened, Data: map[string]any{"epoch": epoch, "boot_id": l.o.BootID}})
	t, err := l.put("", batch.Op{Events: events, Known: known, Payload: update(ErrNotFound, sqlMeta, strconv.FormatInt(epoch, 10), "epoch")})
	if err != nil {
		return err
	}
	l.queue.Round(s)
	s.epoch = epoch
	return t.Err()
}
