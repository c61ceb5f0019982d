package job

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/eda-sidecar/eda-sidecar/adapters"
	"github.com/eda-sidecar/eda-sidecar/cgroup"
	"github.com/eda-sidecar/eda-sidecar/sidecar/txn"
)

// versionTimeout bounds the question for a program's version.
const versionTimeout = 5 * time.Second

// programs finds what tools need, once, and asks for versions: in a group of its own, under the sandbox.
type programs struct {
	// fixed at creation
	groups Groups
	files  *txn.Workspace
	o      *Options

	mu    sync.Mutex
	found map[string]*found // guarded by mu: by program key and tool
}

type found struct {
	name, path string
	version    adapters.Version
	err        error
}

// find returns the program of this key, or TOOL_NOT_INSTALLED with what was looked for and found.
func (p *programs) find(t *adapters.Tool, key string) (*found, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.found[t.Name+" "+key]
	if f == nil {
		f = p.look(t, key)
		p.found[t.Name+" "+key] = f
	}
	return f, f.err
}

func (p *programs) look(t *adapters.Tool, key string) *found {
	for _, program := range t.Programs {
		if program.Key != key {
			continue
		}
		path, err := p.lookPath(program.Names)
		f := &found{name: key, path: path, err: err}
		if err != nil {
			return f
		}
		if f.version, err = p.version(program, f.path); err != nil {
			f.err = or(ToolNotInstalled, fmt.Sprintf("ask %q for its version", f.path), err)
		}
		return f
	}
	return &found{name: key, err: failf(Internal, "internal error: tool %q has no program %q", t.Name, key)}
}

// lookPath returns the absolute path of the first executable file of these names, or TOOL_NOT_INSTALLED.
func (p *programs) lookPath(names []string) (string, error) {
	for _, name := range names {
		if filepath.IsAbs(name) {
			if err := executable(name); err != nil {
				return "", &Error{Code: ToolNotInstalled, Op: fmt.Sprintf("use program %q", name), Err: err, Hint: "put an executable file there, or name another one"}
			}
			return name, nil
		}
		for _, dir := range filepath.SplitList(p.o.Path) {
			if path := filepath.Join(dir, name); filepath.IsAbs(path) && executable(path) == nil {
				return path, nil
			}
		}
	}
	return "", failf(ToolNotInstalled, "program %q is not in PATH %q", strings.Join(names, "\" or \""), p.o.Path)
}

// executable says what keeps a file from being run.
func executable(path string) error {
	info, err := os.Stat(path)
	var cause *os.PathError
	switch {
	case errors.As(err, &cause):
		return cause.Err // the path is said already
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return errors.New("it is no regular file")
	case info.Mode()&0o111 == 0:
		return errors.New("it is not executable")
	}
	return nil
}

func (p *programs) version(program adapters.Program, path string) (v adapters.Version, err error) {
	if program.VersionArgs == nil {
		return v, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), versionTimeout)
	defer cancel()
	out, err := p.ask(ctx, path, program.VersionArgs)
	if err != nil {
		return v, err
	}
	return program.ParseVersion(out)
}

// ask runs one short command in a scratch directory to its end and returns what it printed, 64 KiB at most.
func (p *programs) ask(ctx context.Context, path string, args []string) (string, error) {
	id := uuid.Must(uuid.NewV7()).String()
	g, err := p.groups.Create(ctx, id, 0, cgroup.Limits{})
	if err != nil {
		return "", err
	}
	tx, err := p.files.Begin(&txn.Journal{Version: 1, Job: id, Groups: []cgroup.Ref{g.Ref()}}, nil, txn.BeginOptions{})
	var process Process
	if err == nil {
		process, err = g.Start(ctx, cgroup.Command{
			Path: path, Args: append([]string{path}, args...), Env: cgroup.BaseEnv(filepath.Join(tx.Dir(), "tmp"), p.o.Path), Dir: tx.Work(), Linger: -time.Second,
			Sandbox: cgroup.Sandbox{
				Job: []string{tx.Work(), filepath.Join(tx.Dir(), "tmp")}, Readable: p.o.Readable, Hidden: p.o.Hidden, UID: p.o.ToolUID, GID: p.o.ToolGID,
			},
		})
	}
	if err == nil {
		_, err = process.Wait(ctx)
	}
	kill, cancel := context.WithTimeout(context.Background(), p.o.KillTimeout)
	defer cancel()
	_, _ = g.Kill(kill) // a refused kill shows in the proof
	empty, unproven := g.WaitEmpty(kill)
	if unproven != nil {
		p.groups.Sweep(g, g.Remove)
		return "", unproven
	}
	g.Remove(empty)
	if tx != nil {
		err = errors.Join(err, tx.Discard([]cgroup.Empty{empty}), tx.Close())
	}
	if err != nil {
		return "", err
	}
	return string(process.Output().Head), nil
}

// Programs looks for everything that a tool needs and asks for versions. The error joins what is wrong.
func (r *Runner) Programs(t *adapters.Tool) ([]Program, error) {
	var errs []error
	for _, program := range t.Programs {
		_, err := r.programs.find(t, program.Key)
		errs = append(errs, err)
	}
	return r.programs.of(t), errors.Join(errs...)
}

// of returns what is known of a tool's programs, for results and events.
func (p *programs) of(t *adapters.Tool) []Program {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []Program
	for _, program := range t.Programs {
		if f := p.found[t.Name+" "+program.Key]; f != nil && f.path != "" {
			all = append(all, Program{Name: f.name, Path: f.path, Version: f.version.Text, Newer: f.version.Newer})
		}
	}
	return all
}

// Digest returns the SHA-256 of v as JSON, in hex: what the audit trail holds of arguments.
func Digest(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		b = fmt.Append(nil, v)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func signalName(s unix.Signal) string {
	if name := unix.SignalName(s); name != "" {
		return name
	}
	return fmt.Sprintf("signal %d", int(s))
}

// addUsage adds the usage of one more step: times and counts are summed, peaks are the highest.
func addUsage(sum *cgroup.Usage, u cgroup.Usage) {
	for _, f := range []struct{ to, from **float64 }{
		{&sum.CPUSeconds, &u.CPUSeconds},
		{&sum.ThrottledSeconds, &u.ThrottledSeconds},
		{&sum.CPUPressureSeconds, &u.CPUPressureSeconds},
		{&sum.MemoryPressureSeconds, &u.MemoryPressureSeconds},
		{&sum.IOPressureSeconds, &u.IOPressureSeconds},
	} {
		merge(f.to, *f.from, func(a, b float64) float64 { return a + b })
	}
	for _, f := range []struct{ to, from **int64 }{
		{&sum.IOReadBytes, &u.IOReadBytes},
		{&sum.IOWriteBytes, &u.IOWriteBytes},
		{&sum.OOMKills, &u.OOMKills},
		{&sum.OOMGroupKills, &u.OOMGroupKills},
		{&sum.PidsMax, &u.PidsMax},
	} {
		merge(f.to, *f.from, func(a, b int64) int64 { return a + b })
	}
	for _, f := range []struct{ to, from **int64 }{{&sum.MemoryPeakBytes, &u.MemoryPeakBytes}, {&sum.PidsPeak, &u.PidsPeak}} {
		merge(f.to, *f.from, func(a, b int64) int64 { return max(a, b) })
	}
	sum.Unlimited = u.Unlimited
}

// merge keeps absent apart from zero.
func merge[T any](to **T, from *T, both func(a, b T) T) {
	switch {
	case from == nil:
	case *to == nil:
		v := *from
		*to = &v
	default:
		v := both(**to, *from)
		*to = &v
	}
}
