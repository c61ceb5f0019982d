package sidecar

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/eda-sidecar/eda-sidecar/cgroup"
	"github.com/eda-sidecar/eda-sidecar/sidecar/audit"
	"github.com/eda-sidecar/eda-sidecar/sidecar/durable"
	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
	"github.com/eda-sidecar/eda-sidecar/sidecar/ledger"
	"github.com/eda-sidecar/eda-sidecar/sidecar/lock"
	"github.com/eda-sidecar/eda-sidecar/sidecar/txn"
)

// Sidecar is the engine on one workspace, open and recovered.
type Sidecar struct {
	Runner    *job.Runner
	Ledger    *ledger.Ledger
	Recovered []Recovered // what Open did about an earlier process's jobs, in order of their ids

	cfg      Config
	bootID   string
	instance string // of this opening
	files    *txn.Workspace
	owner    *durable.Lock // of the workspace
	state    *durable.Lock // of the state directory
	stateDir durable.Handle
	groups   *cgroup.Parent
	table    *lock.Table
}

// Open opens the engine on a workspace and heals what an earlier process left: after it no process of that one is
// alive, or nothing that it could still touch is handed out.
func Open(ctx context.Context, cfg Config) (*Sidecar, error) {
	return open(ctx, cfg, seams{fs: durable.OS()})
}

// seams are what is put around the parts: by a server, and by tests.
type seams struct {
	fs      durable.FS
	sinks   []func(audit.Event) // see every durable event, recovery's too
	metrics job.Metrics
	serving string // URL of the server, for those who find the workspace owned

	// of tests alone
	fault    func(point string) error    // of the ledger
	groups   func(job.Groups) job.Groups // stands between jobs and groups
	noReaper bool                        // the test waits for children of its own
	adopt    time.Duration               // instead of adoptTimeout
}

func open(ctx context.Context, cfg Config, seam seams) (_ *Sidecar, err error) {
	s := &Sidecar{cfg: cfg, instance: uuid.NewString(), table: lock.New(lock.Options{})}
	defer func() {
		if err != nil {
			_ = s.Close() // the first error tells more
		}
		if err != nil && ctx.Err() != nil {
			err = fail(job.CodeCancelled, "open the workspace", context.Cause(ctx))
		}
	}()
	// 1 the volume, by name and by what it does
	uid, gid := toolOwner(cfg.Workspace)
	if s.bootID, err = bootID(); err != nil {
		return nil, fail(job.Internal, "read the boot id", err)
	}
	s.files, err = txn.Open(seam.fs, cfg.Workspace, txn.Options{
		ToolUID: uid, ToolGID: gid, MinFreeBytes: cfg.MinFreeBytes, MinFreeInodes: cfg.MinFreeInodes, BootID: s.bootID,
		Mend: func() { mendState(s.stateDir) }, // no tool runs before it is open
	})
	if err != nil {
		return nil, volumeError("open the workspace", err)
	}
	// 2 one owner
	if s.owner, err = own(ctx, seam.fs, s.files.Side()); err != nil {
		return nil, ownerError(err)
	}
	_ = s.files.EmptyTrash() // room for what follows; what cannot be deleted now is tried again
	// A full volume cannot be tried: recovery needs no room, and admission refuses what does.
	tried := s.files.Probe()
	if tried != nil && !errors.Is(tried, syscall.ENOSPC) && !errors.Is(tried, syscall.EDQUOT) {
		return nil, volumeError("try the workspace's volume", tried)
	}
	// 3 the place for groups and the ledger, before anything is decided. They need nothing of each other, and each takes
	// its time; but the volume's probe must be over: between its birth and its exec the self-test's child holds copies of
	// all our descriptors, and a lease is refused beside a writer.
	earlier, o := s.owner.Previous.Groups, cfg.groups()
	o.NoReaper = seam.noReaper
	var refused error
	var place sync.WaitGroup
	place.Go(func() { s.groups, refused = cgroup.Open(ctx, o) })
	defer place.Wait() // before Close
	if err := s.openLedger(ctx, seam); err != nil {
		if place.Wait(); refused == nil { // nothing can be recorded or decided: but what runs can be ended
			s.killAll(ctx, earlier, cmp.Or(seam.adopt, adoptTimeout))
		}
		if tried != nil {
			return nil, volumeError("try the workspace's volume", tried) // its being full is the cause, however SQLite says it
		}
		return nil, err
	}
	if place.Wait(); refused != nil {
		return nil, fail(job.ContainmentUnavailable, "contain tools here", refused)
	}
	// 4-8 kill, prove, decide, retire
	recovery := s.recovery()
	err = recovery.Run(ctx, earlier, cmp.Or(seam.adopt, adoptTimeout))
	if s.Recovered = recovery.Recovered; err != nil {
		return nil, fail(job.Internal, "recover", err)
	}
	if groups := s.groups.Capabilities().Dir; groups != earlier || seam.serving != "" { // only now: till here a start must look in the earlier place
		if err := s.sign(groups, seam.serving); err != nil {
			return nil, err
		}
	}
	var groups job.Groups = local{s.groups}
	if seam.groups != nil {
		groups = seam.groups(groups)
	}
	hidden := []string{cfg.StateDir}
	if cfg.TLSKey != "" {
		hidden = append(hidden, cfg.TLSKey)
	}
	s.Runner = job.NewRunner(s.files, cfg.Workspace, s.Ledger, groups, s.table, job.Options{
		Path: cfg.Path, Readable: cfg.Readable, Hidden: hidden, PassEnv: cfg.PassEnv, BootID: s.bootID,
		ToolUID: uid, ToolGID: gid, Limits: cfg.ToolLimits, QueueTimeout: cfg.QueueTimeout, KillTimeout: cfg.KillTimeout, Grace: cfg.Grace,
		Metrics: seam.metrics,
	})
	return s, nil
}

// own takes the owner lock. That of an engine which was killed may be held a moment longer, by a child of its that was
// between clone and exec.
func own(ctx context.Context, fs durable.FS, dir durable.Handle) (*durable.Lock, error) {
	deadline := time.Now().Add(2 * time.Second)
	for {
		lock, err := durable.Own(fs, dir)
		var owned *durable.OwnedError
		if !errors.As(err, &owned) || owned.Alive() || time.Now().After(deadline) {
			return lock, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// openLedger opens the ledger, and says in the owner lock which epoch it is in.
func (s *Sidecar) openLedger(ctx context.Context, seam seams) error {
	var err error
	if s.stateDir, err = openState(s.cfg.StateDir); err != nil {
		return err
	}
	if s.state, err = own(ctx, durable.OS(), s.stateDir); err != nil {
		return ownerError(err)
	}
	previous := s.owner.Previous
	o, err := ledgerOptions(s.cfg, s.files, previous)
	if err != nil {
		return err
	}
	o.BootID, o.Fault, o.Sinks = s.bootID, seam.fault, seam.sinks
	s.Ledger, err = ledger.Open(ctx, o)
	if err != nil {
		return LedgerError("open the ledger", err)
	}
	return s.sign(previous.Groups, "")
}

// ledgerOptions says which ledger belongs to a workspace, by its jobs and by what its last owner wrote.
func ledgerOptions(cfg Config, files *txn.Workspace, previous durable.Owner) (ledger.Options, error) {
	names, err := files.Orphans()
	if err != nil {
		return ledger.Options{}, damaged("list the jobs", err)
	}
	o := ledger.Options{
		Dir: cfg.StateDir, Workspace: previous.WorkspaceID, LockEpoch: previous.Epoch, Used: len(names) > 0 || previous.Epoch > 0, Retention: cfg.AuditRetention,
	}
	if o.Workspace == "" && !within(cfg.StateDir, cfg.Workspace) {
		o.Workspace = uuid.NewString() // a new workspace: what another one has recorded is not its own
	}
	return o, nil
}

// sign says in the owner lock who we are, in which epoch the ledger is, where our groups are, and where we serve.
func (s *Sidecar) sign(groups, serving string) error {
	opening := s.Ledger.Opening()
	err := s.owner.Write(durable.Owner{
		WorkspaceID: opening.Workspace, Instance: s.instance, PID: os.Getpid(), Epoch: opening.Epoch, BootID: s.bootID, Groups: groups, Serving: serving,
	})
	if err != nil {
		return volumeError("write the owner lock", err)
	}
	return nil
}

// Close ends the engine in order. Nothing is lost without it: the next Open heals what it finds.
func (s *Sidecar) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var errs []error
	if s.Runner != nil {
		s.Runner.Close()
	}
	if s.groups != nil {
		errs = append(errs, s.groups.Close(ctx))
	}
	if s.Ledger != nil {
		errs = append(errs, s.Ledger.Close(ctx))
	}
	if s.files != nil && s.owner != nil {
		_ = s.files.EmptyTrash() // the next start tries again
	}
	for _, lock := range []*durable.Lock{s.state, s.owner} {
		if lock != nil {
			errs = append(errs, lock.Release())
		}
	}
	if s.stateDir != nil {
		errs = append(errs, s.stateDir.Close())
	}
	if s.files != nil {
		errs = append(errs, s.files.Close())
	}
	return errors.Join(errs...)
}

// local makes groups on this machine.
type local struct{ *cgroup.Parent }

type localGroup struct{ *cgroup.Group }

func (l local) Create(ctx context.Context, name string, step int, limits cgroup.Limits) (job.Group, error) {
	g, err := l.Parent.Create(ctx, name, step, limits)
	if err != nil {
		return nil, err
	}
	return localGroup{g}, nil
}

func (l local) Sweep(g job.Group, proved func(cgroup.Empty)) {
	if ours, ok := g.(localGroup); ok {
		l.Parent.Sweep(ours.Group, proved)
	}
}

func (g localGroup) Start(ctx context.Context, c cgroup.Command) (job.Process, error) {
	p, err := g.Group.Start(ctx, c)
	if err != nil {
		return nil, err
	}
	return p, nil
}

// toolOwner is the uid and gid of tools: of who owns the workspace if we are root, else ours.
func toolOwner(workspace string) (uid, gid int) {
	info, err := os.Stat(workspace)
	if err != nil || os.Geteuid() != 0 {
		return -1, -1
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return -1, -1
	}
	return int(st.Uid), int(st.Gid)
}

func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b)), err
}

// openState makes the state directory and refuses a volume on which SQLite cannot keep its promise.
func openState(dir string) (durable.Handle, error) {
	if err := os.MkdirAll(filepath.Dir(dir), 0o711); err != nil {
		return nil, fail(job.InvalidArgument, "make the state directory", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fail(job.InvalidArgument, "make the state directory", err)
	}
	h, err := openMended(dir)
	if err != nil {
		return nil, fail(job.InvalidArgument, "open the state directory", err)
	}
	if err := durable.CheckState(durable.OS(), h); err != nil {
		return nil, errors.Join(fail(job.InvalidArgument, "open the state directory", err), h.Close())
	}
	return h, nil
}

// openMended opens the state directory, once it and the files in it have the modes back that a tool of our uid may have taken.
func openMended(dir string) (durable.Handle, error) {
	fs := durable.OS()
	if above, err := fs.OpenRoot("sidecar.state.above", filepath.Dir(dir)); err == nil {
		_ = durable.Mend(fs, durable.Name{Dir: above, Name: filepath.Base(dir)}, 0o700) // if it cannot, the next step says so
		_ = above.Close()                                                               // opened for reading
	}
	h, err := fs.OpenRoot("sidecar.state", dir)
	if err == nil {
		mendState(h)
	}
	return h, err
}

// mendState is openMended for an open one. Whatever keeps it from mending says so when the files are opened.
func mendState(h durable.Handle) {
	fs := durable.OS()
	_ = durable.Mend(fs, durable.Name{Dir: h}, 0o700) // see above
	names, _ := fs.List("sidecar.state.list", h, 0)   // see above
	for _, name := range names {
		_ = durable.Mend(fs, durable.Name{Dir: h, Name: name}, 0o600) // see above
	}
}

func fail(code job.Code, op string, err error) error { return &job.Error{Code: code, Op: op, Err: err} }

// damaged is for what stands in the way of every command: no trail can be asked about it.
func damaged(op string, err error) error {
	return &job.Error{Code: job.Internal, Op: op, Err: err, Hint: `docs/HACKING.md says what to do: "A lost or damaged ledger"`}
}

// noAccess is for what another user, or another mount, may do.
func noAccess(op string, err error) error {
	return &job.Error{
		Code: job.InvalidArgument, Op: op, Err: err,
		Hint: "be the user whom the workspace belongs to, where it is mounted writable; the trail alone can be read from a copy of the state directory, by --state-dir",
	}
}

// volumeError gives a refused or broken volume its code.
func volumeError(op string, err error) error {
	var refused *durable.VolumeError
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fail(job.WorkspaceFull, op, syscall.ENOSPC) // what a probe says of such a volume besides is no use
	case errors.As(err, &refused), errors.Is(err, os.ErrNotExist):
		return fail(job.InvalidArgument, op, err)
	case errors.Is(err, syscall.EROFS), errors.Is(err, os.ErrPermission):
		return noAccess(op, err)
	}
	return damaged(op, err)
}

// ownerError says who has the workspace, and how to reach it.
func ownerError(err error) error {
	var owned *durable.OwnedError
	if errors.As(err, &owned) {
		hint := "it is in use: wait for it to end"
		if at := owned.Owner.Serving; at != "" {
			hint = fmt.Sprintf("it is served: use 'eda-sidecar call --server %s', or drain and stop the server", at)
		}
		return &job.Error{Code: job.Busy, Op: "own the workspace", Err: err, Hint: hint}
	}
	return volumeError("own the workspace", err)
}

// LedgerError gives an error of the ledger its code.
func LedgerError(op string, err error) error {
	switch {
	case errors.Is(err, ledger.ErrWorkspace), errors.Is(err, ledger.ErrNewer):
		return fail(job.InvalidArgument, op, err)
	case errors.Is(err, ledger.ErrAccess), errors.Is(err, os.ErrPermission), errors.Is(err, syscall.EROFS):
		return noAccess(op, err)
	case errors.Is(err, syscall.ENOSPC):
		return &job.Error{Code: job.Internal, Op: op, Err: err, Hint: "free space in --state-dir"}
	case errors.Is(err, ledger.ErrFresh):
		return &job.Error{Code: job.Internal, Op: op, Err: err, Hint: `name the --state-dir that it was used with; if that is lost, docs/HACKING.md says what to do: "A lost or damaged ledger"`}
	}
	return damaged(op, err)
}
