package txn

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/eda-sidecar/eda-sidecar/cgroup"
	"github.com/eda-sidecar/eda-sidecar/cgroup/cgrouptest"
	"github.com/eda-sidecar/eda-sidecar/sidecar/durable"
	"github.com/eda-sidecar/eda-sidecar/sidecar/durable/durabletest"
)

// must fails the test on an error of a set-up step, a missing capability included.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func put(t testing.TB, path, content string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(content), 0o644))
}

// show returns all files below dir but .eda-sidecar, path to content; a directory ends in / and a link is its target.
func show(t testing.TB, dir string) map[string]string {
	t.Helper()
	got := map[string]string{}
	must(t, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil || rel == "." {
			return err
		}
		if rel == reserved {
			return fs.SkipDir
		}
		switch {
		case d.IsDir():
			got[rel+"/"] = ""
		case d.Type()&fs.ModeSymlink != 0:
			got[rel], err = os.Readlink(p)
		case d.Type().IsRegular():
			var b []byte
			b, err = os.ReadFile(p)
			got[rel] = string(b)
		default:
			got[rel] = d.Type().String()
		}
		return err
	}))
	return got
}

// lab is a workspace with a job's worth of targets: two old files, a new one in missing directories, an old tree and an
// optional output that the tool does not write.
type lab struct {
	t      testing.TB
	root   string
	fs     durable.FS
	w      *Workspace
	o      Options
	a      *Admission
	tx     *Txn
	j      *Journal
	proofs []cgroup.Empty
}

const job = "01j-test"

// newLab is on tmpfs, so that hundreds of syncs do not wait for a busy disk; ext4 and xfs have tests of their own.
func newLab(t testing.TB, f durable.FS, o Options) *lab {
	t.Helper()
	return newLabIn(t, shm(t), f, o)
}

func newLabIn(t testing.TB, root string, f durable.FS, o Options) *lab {
	t.Helper()
	if o.ToolUID == 0 {
		o.ToolUID, o.ToolGID = -1, -1
	}
	l := &lab{t: t, root: root, fs: f, o: o, proofs: []cgroup.Empty{cgrouptest.Empty(cgrouptest.Ref(job))}}
	l.open()
	t.Cleanup(l.close)
	return l
}

// close releases everything. It may be called twice.
func (l *lab) close() {
	l.drop()
	if l.w != nil {
		must(l.t, l.w.Close())
	}
	l.w = nil
}

// open opens the workspace anew, as a start does.
func (l *lab) open() {
	l.t.Helper()
	planner := Plan
	if l.w != nil {
		planner = l.w.plan
		must(l.t, l.w.Close())
	}
	var err error
	l.w, err = Open(l.fs, l.root, l.o)
	must(l.t, err)
	l.w.plan = planner
}

// drop forgets the transaction, as a crash does, but for its descriptors.
func (l *lab) retire(fate Fate) (foreign []Action) {
	l.t.Helper()
	foreign, err := l.w.Retire(l.j, fate)
	must(l.t, err)
	return foreign
}

func (l *lab) drop() {
	if l.tx != nil {
		must(l.t, l.tx.Close())
	}
	if l.a != nil {
		l.a.Close()
	}
	l.tx, l.a = nil, nil
}

func (l *lab) path(rel string) string { return filepath.Join(l.root, rel) }

func (l *lab) seed() {
	l.t.Helper()
	put(l.t, l.path("build/a.json"), "old a")
	put(l.t, l.path("rtl/b.v"), "old b")
	put(l.t, l.path("build/tree/one"), "old one")
	put(l.t, l.path("build/tree/sub/two"), "old two")
}

var labSpecs = []Spec{
	{Name: "a", Target: "build/a.json", Kind: File},
	{Name: "b", Target: "rtl/b.v", Kind: File},
	{Name: "c", Target: "new/deep/c.txt", Kind: File, MakeParents: true},
	{Name: "d", Target: "build/tree", Kind: Tree},
	{Name: "e", Target: "build/optional.log", Kind: File, Optional: true},
}

func oldState() map[string]string {
	return map[string]string{
		"build/": "", "rtl/": "", "build/tree/": "", "build/tree/sub/": "",
		"build/a.json": "old a", "rtl/b.v": "old b", "build/tree/one": "old one", "build/tree/sub/two": "old two",
	}
}

func newState() map[string]string {
	return map[string]string{
		"build/": "", "rtl/": "", "build/tree/": "", "build/tree/sub2/": "", "new/": "", "new/deep/": "",
		"build/a.json": "new a", "rtl/b.v": "new b", "new/deep/c.txt": "new c", "build/tree/sub2/three": "new three",
	}
}

// The steps of a straight transaction, in the order of 20-transaction section 2.
func (l *lab) admit(specs ...Spec) error {
	a, err := l.w.Admit(specs)
	if err == nil {
		l.a = a
		l.j = &Journal{
			Version: 1, Job: job, BootID: l.o.BootID, Groups: []cgroup.Ref{cgrouptest.Ref(job)},
			CreatedDirs: a.CreatedDirs(), Outputs: a.Outputs(job),
		}
	}
	return err
}

func (l *lab) begin(o BeginOptions) error {
	tx, err := l.w.Begin(l.j, l.a, o)
	if err == nil {
		l.tx = tx
	}
	return err
}

// tool writes what a well-behaved tool would.
func (l *lab) tool() {
	l.t.Helper()
	for i, o := range l.j.Outputs {
		staged := filepath.Join(l.tx.Work(), l.j.Outputs[i].StagedArg())
		switch {
		case l.a.specs[i].Optional:
		case o.Kind == Tree:
			put(l.t, filepath.Join(staged, "sub2/three"), "new three")
		default:
			put(l.t, staged, "new "+o.Name)
		}
	}
}

func (l *lab) inspect() error { _, err := l.tx.Inspect(l.proofs, Quotas{}); return err }

func (l *lab) seal() error {
	j, err := l.tx.Seal()
	if err == nil {
		l.j = j
	}
	return err
}

type step struct {
	name string
	run  func() error
}

func (l *lab) steps() []step {
	return []step{
		{"admit", func() error { return l.admit(labSpecs...) }},
		{"refresh", func() error { _, err := l.a.Refresh(); return err }},
		{"begin", func() error { return l.begin(BeginOptions{}) }},
		{"tool", func() error { l.tool(); return nil }},
		{"inspect", l.inspect},
		{"seal", l.seal},
		{"b1", func() error { return l.tx.SyncStaged(l.proofs, nil) }},
		{"exchange", func() error { return l.tx.Exchange(l.proofs) }},
		{"b2", func() error { return l.tx.SyncTargets() }},
	}
}

// run runs the steps up to and including last, and returns the name of the one that failed.
func (l *lab) run(last string) (string, error) {
	for _, s := range l.steps() {
		if err := s.run(); err != nil {
			return s.name, err
		}
		if s.name == last {
			break
		}
	}
	return "", nil
}

func (l *lab) mustRun(last string) {
	l.t.Helper()
	if name, err := l.run(last); err != nil {
		l.t.Fatalf("%s: %v", name, err)
	}
}

func (l *lab) is(want map[string]string) {
	l.t.Helper()
	if diff := cmp.Diff(want, show(l.t, l.root)); diff != "" {
		l.t.Errorf("workspace (-want +got):\n%s", diff)
	}
}

// clean asserts that nothing is left over beside what is kept on purpose.
func (l *lab) clean(wantConflicts ...string) {
	l.t.Helper()
	must(l.t, l.w.EmptyTrash())
	for dir, want := range map[string][]string{"jobs": nil, "trash": nil, "conflicts": wantConflicts} {
		var got []string
		entries, err := os.ReadDir(l.path(reserved + "/" + dir))
		must(l.t, err)
		for _, e := range entries {
			got = append(got, e.Name())
		}
		if !slices.Equal(got, want) {
			l.t.Errorf("%s/ holds %q, want %q", dir, got, want)
		}
	}
}

func TestStraight(t *testing.T) {
	for _, dir := range []string{t.TempDir(), shm(t)} {
		l := newLabIn(t, dir, durable.OS(), Options{})
		l.seed()
		l.mustRun("b2")
		l.is(newState())
		l.drop()
		l.retire(FateCommitted)
		l.retire(FateCommitted) // again: nothing to do
		l.clean()
		l.is(newState())
	}
}

func shm(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "eda-sidecar-")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	return dir
}

// TestUndoAfterEachStep also is the restart after each step: Undo of the live transaction, or a new Workspace that knows
// nothing but the journal. A second recovery finds nothing to do.
func TestUndoAfterEachStep(t *testing.T) {
	for _, s := range (&lab{}).steps()[2:] {
		for _, restart := range []bool{false, true} {
			t.Run(s.name+map[bool]string{true: "-restart"}[restart], func(t *testing.T) {
				l := newLab(t, durable.OS(), Options{})
				l.seed()
				l.mustRun(s.name)
				if restart {
					l.drop()
					l.open()
				}
				published := l.j.Outputs[0].New != nil
				if !published && !restart {
					must(t, l.tx.Discard(l.proofs))
				} else {
					l.recover(map[bool]Resolution{true: RolledBackAll, false: Discarded}[published])
				}
				l.is(oldState())
				l.drop()
				if published {
					l.retire(FateRolledBack)
				} else {
					must(t, l.w.Trash(l.j, l.proofs, nil))
				}
				l.clean()
				l.is(oldState())
			})
		}
	}
}

// recover does what a start does with an open row, twice.
func (l *lab) recover(want Resolution) Decision {
	l.t.Helper()
	seen, err := l.w.Observe(l.j)
	must(l.t, err)
	d := l.w.plan(l.j, seen, FateOpen)
	if d.Resolution != want {
		l.t.Errorf("plan = %+v, want %s", d, want)
	}
	if err := l.w.Apply(l.j, d); err != nil {
		l.t.Fatalf("apply %+v: %v", d, err)
	}
	before := show(l.t, l.path("."))
	seen, err = l.w.Observe(l.j)
	must(l.t, err)
	again := l.w.plan(l.j, seen, FateOpen)
	if !again.Only(ActRetire) {
		l.t.Errorf("plan of the applied plan = %+v, want only %s; first was %+v", again, ActRetire, d)
	}
	must(l.t, l.w.Apply(l.j, again))
	if diff := cmp.Diff(before, show(l.t, l.path("."))); diff != "" {
		l.t.Errorf("second recovery changed something:\n%s", diff)
	}
	return d
}

// TestSyncCount: N + 2 syncs in B1 and D + 1 in B2, a tree one more a member, and none anywhere else after the tool.
func TestSyncCount(t *testing.T) {
	for _, tt := range []struct {
		name   string
		specs  []Spec
		b1, b2 int
	}{
		{"one-output", []Spec{{Target: "d0/f0"}}, 1 + 2, 1 + 1},
		{"three-outputs-two-parents", []Spec{{Target: "d0/f0"}, {Target: "d0/f1"}, {Target: "d1/f2"}}, 3 + 2, 2 + 1},
		{"made-parents", []Spec{{Target: "x/y/f0", MakeParents: true}}, 1 + 2, 3 + 1}, // the root, x, y
		{"tree", []Spec{{Target: "d0/t", Kind: Tree}}, 1 + 2 + 2, 1 + 1},              // sub2, sub2/three
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := durabletest.NewCounting(durable.OS())
			l := newLab(t, c, Options{})
			put(t, l.path("d0/f0"), "old")
			put(t, l.path("d1/f2"), "old")
			for i := range tt.specs {
				if tt.specs[i].Kind == "" {
					tt.specs[i].Kind = File
				}
			}
			must(t, l.admit(tt.specs...))
			before := c.Count("Sync", "")
			must(t, l.begin(BeginOptions{}))
			l.tool()
			must(t, l.inspect())
			must(t, l.seal())
			if n := c.Count("Sync", "") - before; n != 0 {
				t.Errorf("%d syncs before B1, want 0", n)
			}
			also := 0
			must(t, l.tx.SyncStaged(l.proofs, func() error { also++; return nil }))
			b1 := c.Count("Sync", "") - before
			reads := c.Count("ReadAt", "") + c.Count("WriteAt", "")
			must(t, l.tx.Exchange(l.proofs))
			if n := c.Count("Sync", "") - before; n != b1 || b1 != tt.b1 || also != 1 {
				t.Errorf("%d syncs in B1 (%d after Exchange), ledger waited for %d times; want %d, %[4]d, 1", b1, n, also, tt.b1)
			}
			if n := c.Count("ReadAt", "") + c.Count("WriteAt", ""); n != reads {
				t.Errorf("Exchange read or wrote file data %d times", n-reads)
			}
			must(t, l.tx.SyncTargets())
			if n := c.Count("Sync", "") - before - b1; n != tt.b2 {
				t.Errorf("%d syncs in B2, want %d", n, tt.b2)
			}
			// Order: no target changes before the last sync of B1, no sync of a parent before the last exchange.
			stage := 0
			for _, op := range c.Trace() {
				now := map[durable.Site]int{
					"txn.seal.move": 1, "txn.b1.output": 2, "txn.b1.job": 2, "txn.b1.jobs": 2, "txn.b1.member": 2,
					"txn.publish.exchange": 3, "txn.publish.noreplace": 3, "txn.b2.job": 4, "txn.b2.parent": 4,
				}[op.Site]
				if now != 0 && now < stage {
					t.Errorf("operation %d, %s at %s, comes after stage %d", op.N, op.Method, op.Site, stage)
				}
				stage = max(stage, now)
			}
		})
	}
}

// TestWitness: no proof, the zero proof, another group's and one of two groups are refused everywhere and change nothing.
// Control: a journal that names the other group takes its proof.
func TestWitness(t *testing.T) {
	l := newLab(t, durable.OS(), Options{})
	l.seed()
	l.mustRun("refresh")
	other := cgrouptest.Empty(cgrouptest.Ref("other"))
	l.j.Groups = append(l.j.Groups, cgrouptest.Ref("second"))
	must(t, l.begin(BeginOptions{}))
	l.tool()
	bad := map[string][]cgroup.Empty{"none": nil, "zero": {{}}, "another-group": {other}, "one-of-two": l.proofs}
	for name, proofs := range bad {
		calls := map[string]func() error{
			"Inspect":    func() error { _, err := l.tx.Inspect(proofs, Quotas{}); return err },
			"StagedFS":   func() error { _, err := l.tx.StagedFS(proofs); return err },
			"SyncStaged": func() error { return l.tx.SyncStaged(proofs, nil) },
			"Exchange":   func() error { return l.tx.Exchange(proofs) },
			"Discard":    func() error { return l.tx.Discard(proofs) },
			"Trash": func() error {
				return l.w.Trash(l.j, proofs, []cgroup.Confined{{}, cgrouptest.Confined(cgrouptest.Ref("other"), "x")})
			},
		}
		for call, do := range calls {
			if err := do(); !errors.Is(err, ErrUnproven) {
				t.Errorf("%s with %s = %v, want ErrUnproven", call, name, err)
			}
		}
	}
	if _, err := os.Stat(l.tx.Dir()); err != nil {
		t.Errorf("job directory after refusals: %v", err)
	}
	l.is(oldState())
	none := *l.j
	none.Groups = nil
	if err := l.w.Trash(&none, l.proofs, nil); !errors.Is(err, ErrUnproven) {
		t.Errorf("journal without groups = %v, want ErrUnproven", err)
	}
	l.j.Groups = []cgroup.Ref{cgrouptest.Ref("other")}
	if _, err := l.tx.Inspect([]cgroup.Empty{other}, Quotas{}); err != nil {
		t.Errorf("control: Inspect with another group's proof = %v, want success", err)
	}
}

// TestJournalDocument: what Encode writes Decode reads; what is not ours is refused.
func TestJournalDocument(t *testing.T) {
	l := newLab(t, durable.OS(), Options{})
	l.seed()
	l.mustRun("seal")
	b, err := l.j.Encode()
	must(t, err)
	got, err := DecodeJournal(b)
	must(t, err)
	if diff := cmp.Diff(l.j, got); diff != "" {
		t.Errorf("round trip (-want +got):\n%s", diff)
	}
	doc := string(b)
	for _, tt := range []struct{ name, from, to string }{
		{"unknown-field", `"version":1`, `"version":1,"extra":1`},
		{"duplicate-key", `"version":1`, `"version":1,"version":1`},
		{"duplicate-key-in-other-case", `"version":1`, `"version":1,"Job":"x"`},
		{"duplicate-key-inside", `"index":0`, `"index":0,"index":0`},
		{"newer-version", `"version":1`, `"version":2`},
		{"trailing-bytes", `{"version"`, `{} {"version"`},
		{"target-outside", `"build/a.json"`, `"../a.json"`},
		{"target-absolute", `"build/a.json"`, `"/etc/passwd"`},
		{"target-in-side", `"build/a.json"`, `".eda-sidecar/owner.lock"`},
		{"targets-overlap", `"build/a.json"`, `"build/tree/one"`},
		{"targets-equal", `"build/a.json"`, `"rtl/b.v"`},
		{"staged-of-another-job", `"jobs/01j-test/o0"`, `"jobs/other/o0"`},
		{"staged-outside", `"jobs/01j-test/o0"`, `"jobs/01j-test/../x"`},
		{"job-is-a-path", `"job":"01j-test"`, `"job":"../x"`},
		{"created-dir-outside", `"new/deep"`, `"new/../.."`},
		{"kind", `"kind":"file"`, `"kind":"fifo"`},
		{"method", `"method":"exchange"`, `"method":"copy"`},
		{"method-without-old", `"method":"exchange"`, `"method":"noreplace"`},
		{"index", `"index":1`, `"index":0`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bad := strings.Replace(doc, tt.from, tt.to, 1)
			if bad == doc {
				t.Fatalf("%q does not occur in %s", tt.from, doc)
			}
			if _, err := DecodeJournal([]byte(bad)); !errors.Is(err, ErrDocument) {
				t.Errorf("DecodeJournal = %v, want ErrDocument", err)
			}
		})
	}
	if _, err := DecodeJournal([]byte(doc + strings.Repeat(" ", documentMax))); !errors.Is(err, ErrDocument) {
		t.Errorf("a document over 256 KiB = %v, want ErrDocument", err)
	}
}

func TestJobDirectory(t *testing.T) {
	l := newLab(t, durable.OS(), Options{ToolUID: 1234, ToolGID: 1235, Now: func() time.Time { return time.Unix(1e9, 0) }})
	l.seed()
	must(t, l.admit(labSpecs...))
	must(t, l.begin(BeginOptions{Links: []string{"rtl"}, Files: map[string][]byte{"_run.ys": []byte("synth\n")}}))
	for name, want := range map[string]struct {
		mode fs.FileMode
		uid  int
	}{
		".": {0o711 | fs.ModeDir, 0}, "s0": {0o700 | fs.ModeDir, 1234}, "s4": {0o700 | fs.ModeDir, 1234}, "work": {0o700 | fs.ModeDir, 1234},
		"tmp": {0o700 | fs.ModeDir, 1234}, "tmp/home": {0o700 | fs.ModeDir, 1234}, "log": {0o600, 0}, "recovery.json": {0o600, 0}, "work/_run.ys": {0o644, 0},
	} {
		fi, err := os.Lstat(filepath.Join(l.tx.Dir(), name))
		must(t, err)
		if uid := owner(fi); fi.Mode() != want.mode || uid != want.uid {
			t.Errorf("%s: mode %v, uid %d; want %v, %d", name, fi.Mode(), uid, want.mode, want.uid)
		}
	}
	b, err := os.ReadFile(filepath.Join(l.tx.Work(), "rtl/b.v"))
	if err != nil || string(b) != "old b" {
		t.Errorf("the view shows rtl/b.v as %q, %v", b, err)
	}
	if got := []string{l.j.Outputs[0].StagedArg(), l.j.Outputs[3].StagedArg(), l.j.Outputs[2].StagedArg()}; !slices.Equal(got, []string{"../s0/out.json", "../s3/out", "../s2/out.txt"}) {
		t.Errorf("staged arguments = %q", got)
	}
	if err := l.begin(BeginOptions{}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second Begin of one job = %v, want EEXIST", err)
	}
	if _, err := os.Stat(l.tx.Work()); err != nil {
		t.Errorf("the refused Begin removed the first one's directory: %v", err)
	}
	l.tool()
	must(t, l.inspect())
	must(t, l.seal())
	must(t, l.tx.Exchange(l.proofs))
	for _, p := range []string{"build/a.json", "build/tree", "build/tree/sub2/three", "new", "new/deep/c.txt"} {
		fi, err := os.Lstat(l.path(p))
		must(t, err)
		if owner(fi) != 1234 {
			t.Errorf("%s belongs to %d, want the tool's uid", p, owner(fi))
		}
	}
}

// TestScratch is the directory of a read: no admission, no outputs, another name.
func TestScratch(t *testing.T) {
	l := newLab(t, durable.OS(), Options{})
	l.j = &Journal{Version: 1, Job: job, Groups: []cgroup.Ref{cgrouptest.Ref(job)}}
	must(t, l.begin(BeginOptions{}))
	if filepath.Base(l.tx.Dir()) != "r-"+job {
		t.Errorf("scratch is %q", l.tx.Dir())
	}
	put(t, filepath.Join(l.tx.Work(), "x"), "x")
	in, err := l.tx.Inspect(l.proofs, Quotas{})
	if err != nil || !slices.Equal(in.Undeclared, []string{"work/x"}) {
		t.Errorf("Inspect = %+v, %v", in, err)
	}
	must(t, l.tx.Discard(l.proofs))
	l.clean()
}

// TestMadeParentsBelong: a directory that publication makes is what mkdir in a setgid directory makes: of its group, and setgid.
func TestMadeParentsBelong(t *testing.T) {
	l := newLab(t, durable.OS(), Options{ToolUID: 1234, ToolGID: 1234})
	must(t, os.Mkdir(l.path("shared"), 0o755))
	must(t, os.Chown(l.path("shared"), 0, 4321))
	must(t, os.Chmod(l.path("shared"), 0o775|fs.ModeSetgid))
	must(t, l.admit(Spec{Name: "x", Target: "shared/new/x", Kind: File, MakeParents: true}, Spec{Name: "y", Target: "plain/y", Kind: File, MakeParents: true}))
	must(t, l.begin(BeginOptions{}))
	l.tool()
	must(t, errors.Join(l.inspect(), l.seal(), l.tx.Exchange(l.proofs)))
	for _, tt := range []struct {
		name     string
		mode     uint32
		uid, gid uint32
	}{
		{"shared/new", 0o2755, 1234, 4321},
		{"plain", 0o755, 1234, 1234},
	} {
		var st unix.Stat_t
		must(t, unix.Stat(l.path(tt.name), &st))
		if st.Mode&0o7777 != tt.mode || st.Uid != tt.uid || st.Gid != tt.gid {
			t.Errorf("%s has mode %o, owner %d:%d; want %o, %d:%d", tt.name, st.Mode&0o7777, st.Uid, st.Gid, tt.mode, tt.uid, tt.gid)
		}
	}
}
