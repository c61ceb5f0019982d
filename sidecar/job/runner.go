package job

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/eda-sidecar/eda-sidecar/adapters"
	"github.com/eda-sidecar/eda-sidecar/cgroup"
	"github.com/eda-sidecar/eda-sidecar/sidecar/audit"
	"github.com/eda-sidecar/eda-sidecar/sidecar/job/outcome"
	"github.com/eda-sidecar/eda-sidecar/sidecar/ledger"
	"github.com/eda-sidecar/eda-sidecar/sidecar/lock"
	"github.com/eda-sidecar/eda-sidecar/sidecar/session"
	"github.com/eda-sidecar/eda-sidecar/sidecar/txn"
)

// Runner runs calls. Make one with NewRunner.
type Runner struct {
	files    *txn.Workspace
	root     string // absolute path of the workspace
	ledger   *ledger.Ledger
	groups   Groups
	table    *lock.Table
	programs *programs
	o        Options

	undoEvery time.Duration   // pause between two tries of an undo that waits for room on the volume
	alive     context.Context // ends at Close
	end       context.CancelFunc
	behind    sync.WaitGroup // of goroutines that outlive their call's answer
	unsure    atomic.Bool    // an undo could not be made durable: mutators are refused until a restart
}

// Close ends what goes on behind answered calls: undos that wait for room, commits without an answer. The next start
// decides what is open then; its keys stay held. Close is called after the last call has returned, before the ledger
// and the workspace are closed.
func (r *Runner) Close() {
	r.end()
	r.behind.Wait()
}

// NewRunner returns a runner on a recovered workspace. root is the workspace's absolute path.
func NewRunner(files *txn.Workspace, root string, l *ledger.Ledger, groups Groups, table *lock.Table, o Options) *Runner {
	o.defaults()
	r := &Runner{
		files: files, root: root, ledger: l, groups: groups, table: table, o: o, undoEvery: 5 * time.Second,
		programs: &programs{groups: groups, files: files, o: &o, found: map[string]*found{}},
	}
	r.alive, r.end = context.WithCancel(context.Background())
	return r
}

func (o *Options) defaults() {
	for _, d := range []struct {
		to  *time.Duration
		def time.Duration
	}{{&o.QueueTimeout, time.Minute}, {&o.KillTimeout, 10 * time.Second}, {&o.Grace, 2 * time.Second}, {&o.LedgerTimeout, 30 * time.Second}} {
		if *d.to == 0 {
			*d.to = d.def
		}
	}
	if o.Path == "" {
		o.Path = "/usr/local/bin:/usr/bin:/bin"
	}
	if o.Now == nil {
		o.Now = time.Now
	}
}

// call is one job on its way through Run: a goroutine's own, but for its cell.
type call struct {
	*Runner
	req     Request
	id      string
	mutates bool
	asked   time.Time
	cell    outcome.Cell
	at      atomic.Pointer[at]     // what others may see of it
	by      atomic.Pointer[string] // who else cancelled it
	stop    []func()               // run at the end, last first
	res     Result
	times   Times

	inputs    []txn.Input // as they were before the tool ran
	admission *txn.Admission
	row       ledger.Session // as cloned
	state     session.State  // the next one
	args      adapters.Args
	inv       adapters.Invocation
	groups    []Group
	proofs    []cgroup.Empty
	panicked  atomic.Pointer[error] // of the adapter's Progress, which runs beside us
	over      atomic.Pointer[error] // the quota that the running tool has broken
	full      atomic.Bool           // the volume had no room while the tool ran
	survived  error                 // why a group, the first of such, could not be proven empty
	journal   *txn.Journal
	tx        *txn.Txn
	start     audit.Event    // of the first step
	said      *ledger.Ticket // of the operation on which start rides
	closing   *ledger.Ticket // of the undo's row, until it is answered
	log       transcript
	exits     []adapters.StepExit
	report    adapters.Report
	inspected *txn.Inspection

	stage   stage
	running bool          // a process of the job was started
	minted  string        // id of a session that may have to be made
	sweep   sync.Mutex    // orders the sweeps of several groups
	undone  []audit.Event // what an undo has to record
}

// stage is how far a call has come, and so what its failure leaves to be undone.
type stage int

const (
	unknown    stage = iota // to the ledger: a failure is a denial
	recorded                // the ledger knows the job; nothing was published
	publishing              // targets may have changed
	committed
)

// Run runs one call to its terminal answer. The end of ctx cancels the job: it is then killed, proven dead and rolled
// back before Run returns.
func (r *Runner) Run(ctx context.Context, req Request) Result {
	c := r.newCall(req)
	defer context.AfterFunc(ctx, func() { c.cell.Abort(outcome.Cancelled) })()
	return c.answer(c.run())
}

func (r *Runner) newCall(req Request) *call {
	c := &call{Runner: r, req: req, id: uuid.Must(uuid.NewV7()).String(), asked: r.o.Now(), minted: uuid.Must(uuid.NewV7()).String()}
	c.mutates = req.Tool.Mutates(req.Args)
	c.at.Store(&at{state: StateRunning, since: c.asked})
	c.res = Result{Tool: req.Tool.Name, Job: c.id, Outputs: []Published{}, Undeclared: []string{}, Diagnostics: []adapters.Diagnostic{}}
	return c
}

// run is the way of a call. An error before step 5 is a denial; after it everything is undone.
func (c *call) run() (err error) {
	defer func() { err = c.settle(err) }()
	// 1 admission: targets and inputs, beneath the workspace; pre-images; allowed at all?
	if err = c.admit(); err != nil {
		return err
	}
	// 2 all keys at once: session and targets
	if err = c.acquire(); err != nil {
		return err
	}
	// 3 clone of the session's state
	if err = c.clone(); err != nil {
		return err
	}
	// 4 the plan is pure; one empty group a step
	if err = c.plan(); err != nil {
		return err
	}
	// 5 B0: the ledger says it first; then the job directory
	if err = c.begin(); err != nil {
		return err
	}
	// 6-8 every step: start in its group, wait, kill, prove empty
	if err = c.work(); err != nil {
		return err
	}
	// 9 staging walk, validators, verdict
	if err = c.judge(); err != nil || !c.mutates {
		return err
	}
	// 10 B1, the last point where an abort wins, exchange, B2
	if err = c.publish(); err != nil {
		return err
	}
	// 11 the commit point
	return c.commitState()
	// 12 release and answer: settle, by defer
}

// admit checks what the call may touch, and touches nothing.
func (c *call) admit() (err error) {
	if c.req.Refused != nil {
		return c.req.Refused
	}
	if trust := c.req.Tool.TrustOf(c.req.Args); trust == adapters.Script && !c.req.Script {
		return failf(Denied, "tool %q with these arguments runs code of the caller, which needs the capability \"script\"", c.req.Tool.Name)
	}
	if ceiling := c.effective().WallMax; c.req.Timeout > ceiling {
		return failf(InvalidArgument, "timeout %v is over the ceiling of tool %q, which is %v", c.req.Timeout, c.req.Tool.Name, ceiling)
	}
	if c.mutates && c.unsure.Load() {
		return failf(PublishFailed, "the volume failed to make an earlier undo durable: only a restart can tell what is on it")
	}
	if c.row, err = c.session(); err != nil {
		return err
	}
	if !c.mutates {
		return c.checkInputs()
	}
	var specs []txn.Spec
	for _, o := range c.req.Args.Outputs() {
		specs = append(specs, txn.Spec{Name: o.Name, Target: o.Target, Kind: txn.File, Optional: o.Optional, AllowEmpty: o.AllowEmpty, MakeParents: o.MakeParents})
	}
	if c.admission, err = c.files.Admit(specs); err != nil {
		return err
	}
	c.stop = append(c.stop, c.admission.Close)
	for _, note := range c.admission.Notes() {
		c.res.Diagnostics = append(c.res.Diagnostics, adapters.Diagnostic{Severity: adapters.Info, Message: note})
	}
	return c.checkInputs()
}

// checkInputs reads every input once: it must be there, beneath the workspace, and readable.
func (c *call) checkInputs() error {
	for _, in := range c.req.Args.AllInputs() {
		var seen txn.Input
		var err error
		if in.Dir {
			seen, err = c.files.OpenInputDir(in.Path)
		} else {
			seen, err = c.files.OpenInput(in.Path, in.MaxBytes)
		}
		if err != nil {
			return fail(InvalidArgument, fmt.Sprintf("argument %q", in.Name), err)
		}
		c.inputs = append(c.inputs, seen)
	}
	return nil
}

// acquire takes the keys and looks again at the targets: what an earlier job published is now the pre-image.
func (c *call) acquire() error {
	if !c.mutates {
		return nil
	}
	began := c.o.Now()
	c.enter(StateQueued)
	defer func() {
		c.times.Queued = c.o.Now().Sub(began)
		c.enter(StateRunning)
	}()
	for range 3 {
		release, err := c.lock()
		if err != nil {
			return err
		}
		changed, err := c.admission.Refresh()
		if err == nil && !changed {
			c.cell.Hold(release)
			return nil
		}
		release()
		if err != nil {
			return err
		}
	}
	return failf(OutputConflict, "the directories of the targets changed three times while the call waited for them")
}

func (c *call) lock() (release func(), err error) {
	ctx, cancel := context.WithTimeout(context.Background(), c.o.QueueTimeout)
	defer cancel()
	if !c.cell.Register(cancel) {
		return nil, c.aborted()
	}
	defer c.cell.Unregister()
	keys := []lock.Key{SessionKey(c.row)}
	for _, chain := range c.admission.Chains() {
		keys = append(keys, PathKey(chain))
	}
	if holder, held := c.quarantined(keys); held {
		return nil, failf(Busy, "the session or a target is held by %s, which waits for an operator: 'eda-sidecar doctor' says why", c.blame(holder))
	}
	release, err = c.table.Acquire(ctx.Done(), lock.Request{
		Owner: lock.Owner{Job: c.id, Session: c.row.ID, Tool: c.req.Tool.Name, Principal: c.req.Principal, Since: c.asked.UnixMilli()},
		Keys:  keys,
		Alive: func() error { _, err := c.session(); return err },
	})
	var busy *lock.BusyError
	switch {
	case errors.As(err, &busy) && busy.Holder != (lock.Owner{}):
		return nil, failf(Busy, "the queue is full: %d calls wait for %s", busy.Queued, c.blame(busy.Holder))
	case errors.Is(err, lock.ErrCancelled) && c.cell.Aborted() != outcome.None:
		return nil, c.aborted()
	case errors.Is(err, lock.ErrCancelled):
		return nil, failf(Busy, "waited %v for the session and the targets: %s", c.o.QueueTimeout, c.holders(keys))
	}
	return release, err
}

// QuarantinePrefix marks the owner of keys that are held for an operator: no waiting helps.
const QuarantinePrefix = "quarantine:"

// quarantined returns the job that holds one of the keys for good.
func (c *call) quarantined(keys []lock.Key) (holder lock.Owner, held bool) {
	for _, k := range keys {
		for _, h := range c.table.Holders(k) {
			if h.Job, held = strings.CutPrefix(h.Job, QuarantinePrefix); held {
				return h, true
			}
		}
	}
	return lock.Owner{}, false
}

// holders says who is in the way.
func (c *call) holders(keys []lock.Key) string {
	for _, k := range keys {
		if holders := c.table.Holders(k); len(holders) > 0 {
			return c.blame(holders[0]) + " has them"
		}
	}
	return "others were before this call"
}

// blame puts into the result who is in the way, and says it in words.
func (c *call) blame(h lock.Owner) string {
	c.res.Holder = c.holder(h)
	return c.res.Holder.String()
}

// holder is what this caller may know of another job.
func (c *call) holder(h lock.Owner) *Holder {
	known := &Holder{Tool: h.Tool, Age: c.o.Now().UnixMilli() - h.Since}
	if h.Principal == c.req.Principal {
		known.Job = h.Job
	}
	return known
}

// clone reads the session once more, under its key: the state that the job works on.
func (c *call) clone() (err error) {
	if c.row, err = c.session(); err != nil {
		return err
	}
	c.state = c.row.State.Clone()
	c.res.Session, c.res.SessionVersion = c.row.ID, c.row.Generation
	c.see(func(a *at) { a.session = c.row.ID })
	return nil
}

// plan asks the adapter what to run, and makes one group a step.
func (c *call) plan() error {
	if cause := c.cell.Aborted(); cause != outcome.None {
		return c.aborted()
	}
	staged := make([]string, 0, len(c.req.Args.Outputs()))
	if c.mutates {
		for _, o := range c.admission.Outputs(c.id) {
			staged = append(staged, o.StagedArg())
		}
	}
	c.args = c.req.Args.Bind(staged)
	if err := guard("plan", func() (err error) { c.inv, err = c.req.Tool.Prepare(c.args); return err }); err != nil {
		return err
	}
	for _, s := range c.inv.Steps {
		if _, err := c.programs.find(c.req.Tool, s.Argv[0]); err != nil {
			return err
		}
	}
	for i := range c.inv.Steps {
		g, err := c.Runner.groups.Create(context.Background(), c.id, i, c.limits())
		if err != nil {
			return fail(ContainmentUnavailable, "make a group", err)
		}
		c.groups = append(c.groups, g)
	}
	return nil
}

// begin makes the intent durable, then the job directory: an unknown job directory would be a finding.
func (c *call) begin() (err error) {
	caps := c.Runner.groups.Capabilities()
	c.journal = &txn.Journal{
		Version: 1, Job: c.id, Session: c.row.ID, Tool: c.req.Tool.Name, Principal: c.req.Principal, RequestID: c.req.RequestID,
		LandlockABI: caps.LandlockABI, BootID: c.o.BootID, Epoch: c.ledger.Opening().Epoch,
		BaseGen: c.row.Generation, NewGen: c.row.Generation + 1, Outputs: []txn.Output{},
	}
	for _, g := range c.groups {
		c.journal.Groups = append(c.journal.Groups, g.Ref())
	}
	allow := c.event(audit.Allow, map[string]any{"args_sha256": c.req.Digest})
	if c.req.Key != (Key{}) {
		allow.Data["key_sha256"], allow.Data["key_args_sha256"] = c.req.Key.SHA256, c.req.Key.Args
	}
	if c.mutates {
		c.journal.CreatedDirs, c.journal.Outputs = c.admission.CreatedDirs(), c.admission.Outputs(c.id)
		ticket, err := c.ledger.Begin(c.journal, allow)
		if err != nil {
			return fail(AuditUnavailable, "record the job", err)
		}
		if err := c.await(ticket); err != nil {
			if ticket.Ack() == "" { // it cannot be withdrawn: the undo queues the opposite behind it
				c.stage = recorded
			}
			return fail(AuditUnavailable, "record the job", err)
		}
	} else if _, err := c.ledger.Record(allow); err != nil {
		return fail(AuditUnavailable, "record the call", err)
	}
	c.stage = recorded
	layout, err := c.layout()
	if err != nil {
		return err
	}
	if c.tx, err = c.files.Begin(c.journal, c.admission, layout); err != nil {
		return err
	}
	c.see(func(a *at) { a.dir = c.tx.Dir() })
	return nil
}

// layout is what the job directory holds before the first step.
func (c *call) layout() (o txn.BeginOptions, err error) {
	o = txn.BeginOptions{Links: c.args.Links(), Files: map[string][]byte{}, Collect: map[int]string{}}
	if c.req.Tool.AllEntries {
		names, err := c.files.Entries()
		if err != nil {
			return o, err
		}
		o.Links = slices.DeleteFunc(names, func(name string) bool { return !adapters.PlainName(name) })
	}
	for _, f := range c.inv.Files {
		o.Files[f.Name] = []byte(f.Content)
	}
	if c.req.Tool.StateFiles {
		o.Files["_state.json"] = c.vars()
		o.Products = append(o.Products, "_state.next.json")
	}
	for _, s := range c.inv.Steps {
		for _, p := range s.Makes {
			o.Products = append(o.Products, p.Path)
		}
	}
	for _, col := range c.inv.Collect {
		for _, out := range c.args.Outputs() {
			if out.Name == col.Output {
				o.Collect[out.Index] = col.From
			}
		}
	}
	return o, nil
}

// aborted is the error of a call whose abort won.
func (c *call) aborted() error {
	switch c.cell.Aborted() {
	case outcome.Deadline:
		return failf(ToolTimeout, "the tool was not done after %v", c.timeout())
	case outcome.Destroyed: // which it is only after our end
		return failf(CodeCancelled, "session %q is being closed by force", c.row.ID)
	case outcome.Shutdown:
		return failf(ShuttingDown, "the engine is stopping")
	case outcome.Quota:
		if over := c.over.Load(); over != nil {
			return fail(OutputLimit, "", *over)
		}
		return failf(OutputLimit, "the tool wrote more than its limit")
	case outcome.Cancelled:
		if by := c.by.Load(); by != nil {
			return failf(CodeCancelled, "%s cancelled the call", *by)
		}
	case outcome.None:
	}
	return failf(CodeCancelled, "the call was cancelled")
}

// guard runs one of an adapter's functions: a panic in it fails this job alone.
func guard(op string, f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = failf(Internal, "internal error: %s: %v", op, p)
		}
	}()
	return f()
}
