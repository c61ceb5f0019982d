package job

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/eda-sidecar/eda-sidecar/adapters"
	"github.com/eda-sidecar/eda-sidecar/cgroup"
	"github.com/eda-sidecar/eda-sidecar/sidecar/audit"
	"github.com/eda-sidecar/eda-sidecar/sidecar/durable"
	"github.com/eda-sidecar/eda-sidecar/sidecar/durable/durabletest"
	"github.com/eda-sidecar/eda-sidecar/sidecar/ledger"
	"github.com/eda-sidecar/eda-sidecar/sidecar/lock"
	"github.com/eda-sidecar/eda-sidecar/sidecar/session"
	"github.com/eda-sidecar/eda-sidecar/sidecar/txn"
)

// verdictOn is the code of every sentinel of every package that this one imports. INTERNAL stands for: the engine's own
// fault, or an error that no call can meet.
var verdictOn = map[string]struct {
	err  error
	want Code
}{
	"adapters.ErrArgument":          {adapters.ErrArgument, InvalidArgument},
	"adapters.ErrConfig":            {adapters.ErrConfig, InvalidArgument},
	"adapters.ErrVersionUnreadable": {adapters.ErrVersionUnreadable, ToolNotInstalled},
	"adapters.ErrTooOld":            {adapters.ErrTooOld, ToolNotInstalled},
	"adapters.ErrMissing":           {adapters.ErrMissing, OutputInvalid},
	"adapters.ErrNotWhole":          {adapters.ErrNotWhole, OutputInvalid},
	"adapters.ErrLogCut":            {adapters.ErrLogCut, OutputLimit},
	"audit.ErrOrder":                {audit.ErrOrder, Internal},
	"audit.ErrEvent":                {audit.ErrEvent, Internal},
	"audit.ErrTrail":                {audit.ErrTrail, Internal},
	"cgroup.ErrClosed":              {cgroup.ErrClosed, Internal},
	"cgroup.ErrFrozen":              {cgroup.ErrFrozen, Internal},
	"cgroup.ErrStarted":             {cgroup.ErrStarted, Internal},
	"cgroup.ErrSandbox":             {cgroup.ErrSandbox, Internal},
	"cgroup.ErrOpen":                {cgroup.ErrOpen, Internal},
	"cgroup.ErrLimits":              {cgroup.ErrLimits, Internal}, // of Create, whose errors get their code in plan
	"cgroup.ErrUnproven":            {cgroup.ErrUnproven, TerminationUnproven},
	"ledger.ErrDamaged":             {ledger.ErrDamaged, Internal},
	"ledger.ErrNewer":               {ledger.ErrNewer, Internal},
	"ledger.ErrWorkspace":           {ledger.ErrWorkspace, Internal},
	"ledger.ErrAccess":              {ledger.ErrAccess, Internal},
	"ledger.ErrEmpty":               {ledger.ErrEmpty, Internal},
	"ledger.ErrFresh":               {ledger.ErrFresh, Internal},
	"ledger.ErrStale":               {ledger.ErrStale, SessionDestroyed},
	"ledger.ErrPhase":               {ledger.ErrPhase, Internal},
	"ledger.ErrFenced":              {ledger.ErrFenced, Internal},
	"ledger.ErrNotFound":            {ledger.ErrNotFound, SessionNotFound},
	"ledger.ErrFull":                {ledger.ErrFull, AuditUnavailable},
	"ledger.ErrPoisoned":            {ledger.ErrPoisoned, AuditUnavailable},
	"ledger.ErrClosed":              {ledger.ErrClosed, AuditUnavailable},
	"ledger.ErrRefused":             {ledger.ErrRefused, Internal},
	"lock.ErrCancelled":             {lock.ErrCancelled, CodeCancelled},
	"lock.ErrDestroyed":             {lock.ErrDestroyed, SessionDestroyed},
	"session.ErrKey":                {session.ErrKey, OutputInvalid},
	"session.ErrLimit":              {session.ErrLimit, OutputInvalid},
	"session.ErrState":              {session.ErrState, OutputInvalid},
	"txn.ErrInvalidPath":            {txn.ErrInvalidPath, InvalidArgument},
	"txn.ErrFull":                   {txn.ErrFull, WorkspaceFull},
	"txn.ErrDocument":               {txn.ErrDocument, InvalidArgument},
	"txn.ErrUnproven":               {txn.ErrUnproven, TerminationUnproven},
	"txn.ErrOutput":                 {txn.ErrOutput, OutputInvalid},
	"txn.ErrQuota":                  {txn.ErrQuota, OutputLimit},
	"txn.ErrConflict":               {txn.ErrConflict, OutputConflict},
	"txn.ErrSync":                   {txn.ErrSync, Internal},
	"txn.ErrQuarantine":             {txn.ErrQuarantine, PublishFailed},
}

// parse returns the product files of a directory.
func parse(t *testing.T, dir string) (files []*ast.File) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	ok(t, err)
	for _, name := range names {
		if !strings.HasSuffix(name, "_test.go") {
			f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
			ok(t, err)
			files = append(files, f)
		}
	}
	return files
}

// exported calls fn with each exported constant or variable of a directory, and the type it is declared with.
func exported(t *testing.T, dir string, fn func(name, typ string)) {
	t.Helper()
	for _, f := range parse(t, dir) {
		for _, decl := range f.Decls {
			gen, isGen := decl.(*ast.GenDecl)
			if !isGen {
				continue
			}
			for _, spec := range gen.Specs {
				if v, isValue := spec.(*ast.ValueSpec); isValue {
					typ, _ := v.Type.(*ast.Ident)
					for _, name := range v.Names {
						if name.IsExported() && typ != nil {
							fn(name.Name, typ.Name)
						} else if name.IsExported() {
							fn(name.Name, "")
						}
					}
				}
			}
		}
	}
}

var sentinel = regexp.MustCompile(`^Err[A-Z]`)

// missing returns the sentinels of the packages that this one imports that are not in known.
func missing(t *testing.T, known []string) (names []string) {
	t.Helper()
	const module = "github.com/eda-sidecar/eda-sidecar/"
	dirs := map[string]bool{}
	for _, f := range parse(t, ".") {
		for _, imp := range f.Imports {
			p, err := strconv.Unquote(imp.Path.Value)
			ok(t, err)
			if own, isOwn := strings.CutPrefix(p, module); isOwn {
				dirs[own] = true
			}
		}
	}
	if len(dirs) < 8 {
		t.Fatalf("found the imports %v only", dirs)
	}
	for dir := range dirs {
		exported(t, filepath.Join("../..", dir), func(name, _ string) {
			if full := path.Base(dir) + "." + name; sentinel.MatchString(name) && !slices.Contains(known, full) {
				names = append(names, full)
			}
		})
	}
	return names
}

// TestEverySentinelHasACode holds the mapping against the source: a new sentinel needs a row here.
func TestEverySentinelHasACode(t *testing.T) {
	known := slices.Sorted(maps.Keys(verdictOn))
	if names := missing(t, known[1:]); len(names) != 1 || names[0] != known[0] {
		t.Errorf("control: without the row of %s this is missing: %v", known[0], names)
	}
	for _, name := range missing(t, known) {
		t.Errorf("%s has no code", name)
	}
	for name, row := range verdictOn {
		if got := codeOf(fmt.Errorf("do %q: %w", "x", row.err)); got != row.want {
			t.Errorf("%s: got %s, want %s", name, got, row.want)
		}
	}
	for _, s := range sentinels() {
		if !slices.ContainsFunc(slices.Collect(maps.Values(verdictOn)), func(row struct {
			err  error
			want Code
		},
		) bool {
			return errors.Is(row.err, s.err) && row.want == s.code
		}) && s.code != WorkspaceFull {
			t.Errorf("%v is mapped to %s, and no row here says so", s.err, s.code)
		}
	}
}

// TestCodeOf maps errors that carry data, and those that wrap several.
func TestCodeOf(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want Code
	}{
		{&cgroup.UnavailableError{}, ContainmentUnavailable},
		{&cgroup.UnprovenError{}, TerminationUnproven},
		{&cgroup.StartError{Op: "stat", Err: fs.ErrNotExist}, ToolNotInstalled},
		{&cgroup.StartError{Op: "exec", Err: unix.EACCES}, ToolNotInstalled},
		{&cgroup.StartError{Op: "thread", Err: unix.EPERM}, Internal},
		{&cgroup.StartError{Err: cgroup.ErrClosed}, Internal},
		{&lock.BusyError{}, Busy},
		{&adapters.ArgumentError{}, InvalidArgument},
		{&txn.Error{Err: fmt.Errorf("%w: %w", txn.ErrOutput, unix.EAGAIN)}, OutputInvalid},
		{&txn.Error{Err: fmt.Errorf("%w: %w", txn.ErrConflict, unix.EEXIST)}, OutputConflict},
		{fmt.Errorf("write: %w", unix.ENOSPC), WorkspaceFull},
		{fmt.Errorf("write: %w", unix.EDQUOT), WorkspaceFull},
		{fmt.Errorf("%w: %w", ledger.ErrRefused, ledger.ErrStale), SessionDestroyed},
		{fmt.Errorf("%w: %w", ledger.ErrPoisoned, ledger.ErrFenced), AuditUnavailable},
		{errors.New("nobody foresaw it"), Internal},
		{unix.EIO, Internal},
	} {
		if got := codeOf(tt.err); got != tt.want {
			t.Errorf("%T %v: got %s, want %s", tt.err, tt.err, got, tt.want)
		}
	}
	if got := asError(or(PublishFailed, "publish", unix.EIO)).Code; got != PublishFailed {
		t.Errorf("or: got %s", got)
	}
	if got := asError(or(PublishFailed, "publish", unix.ENOSPC)).Code; got != WorkspaceFull {
		t.Errorf("or with a known cause: got %s", got)
	}
}

// TestAdvice: the first hint in a chain wins over the code's.
func TestAdvice(t *testing.T) {
	hinted := &Error{Code: Internal, Err: unix.EIO, Hint: "look here"}
	for _, tt := range []struct {
		err  error
		want string
	}{
		{&Error{Code: Busy}, Busy.Hint()},
		{hinted, "look here"},
		{fmt.Errorf("do %q: %w", "x", hinted), "look here"},
		{&Error{Code: Busy, Err: hinted}, "look here"},
		{&Error{Code: Busy, Err: hinted, Hint: "no, here"}, "no, here"},
		{fmt.Errorf("open %q: %w", "x", unix.EMFILE), "raise the limit of open files, ulimit -n"},
		{unix.EIO, Internal.Hint()},
	} {
		if got := asError(tt.err).Advice(); got != tt.want {
			t.Errorf("%v: got %q, want %q", tt.err, got, tt.want)
		}
	}
}

// TestShortOfDescriptors: an error that says nothing of the target is not the caller's fault.
func TestShortOfDescriptors(t *testing.T) {
	for err, want := range map[unix.Errno]Code{unix.EMFILE: Internal, unix.ENFILE: Internal, unix.EIO: Internal, unix.ELOOP: InvalidArgument, unix.EACCES: InvalidArgument} {
		r := newRig(t, parts{fs: func(fs durable.FS) durable.FS {
			return durabletest.Wrap(fs, func(op durabletest.Op, do func() error) error {
				if op.Site == "txn.admit.open" {
					return err
				}
				return do()
			})
		}})
		res := r.run(r.sh("echo new > {x}", "x=dir/x"))
		if res.Code != want || strings.Contains(res.Hint, "ulimit") != (err == unix.EMFILE || err == unix.ENFILE) {
			t.Errorf("%v: got %s (%s), hint %q; want %s", err, res.Code, res.Message, res.Hint, want)
		}
	}
}

// TestUnusableProgram says what is wrong with a path, instead of where else it was not looked for.
func TestUnusableProgram(t *testing.T) {
	r := newRig(t, parts{})
	plain := filepath.Join(r.dir, "plain")
	ok(t, os.WriteFile(plain, nil, 0o644))
	for name, want := range map[string]string{
		"/no/such/program": "no such file", plain: "not executable", r.dir: "no regular file", plain + "/x": "not a directory", "no-such-program": "not in PATH",
	} {
		tool, args, err := adapters.Command([]string{name}, nil, false)
		ok(t, err)
		res := r.run(Request{Tool: tool, Args: args, Principal: me, Script: true})
		if res.Code != ToolNotInstalled || res.Started || !strings.Contains(res.Message, want) || strings.Contains(res.Message, "PATH") != (want == "not in PATH") {
			t.Errorf("%s: %s %q, want %q", name, res.Code, res.Message, want)
		}
	}
}

// TestCodesAreClosed holds the table of codes against the constants: each is there once, with what to do about it.
func TestCodesAreClosed(t *testing.T) {
	n := 0
	exported(t, ".", func(_, typ string) {
		if typ == "Code" {
			n++
		}
	})
	var seen []Code
	for _, c := range Codes() {
		if strings.Contains(c.Hint, "--timeout") && !strings.Contains(c.Hint, "timeout_s") {
			t.Errorf("the hint of %s tells an MCP client of a flag: %q", c.Code, c.Hint)
		}
		if slices.Contains(seen, c.Code) || c.Meaning == "" || (c.Hint == "") != (c.Code == OK) {
			t.Errorf("row %+v", c)
		}
		seen = append(seen, c.Code)
	}
	if len(seen) != n {
		t.Errorf("%d constants, %d rows", n, len(seen))
	}
}
