package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/eda-sidecar/eda-sidecar/test/bench/sample"
	"github.com/eda-sidecar/eda-sidecar/test/house/doctable"
)

// program builds the product as the Makefile does, and returns its path.
func program(t testing.TB) string {
	t.Helper()
	root := doctable.Root(t)
	path := filepath.Join(root, "build", "bench", "eda-sidecar")
	c := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, "./cmd/eda-sidecar")
	c.Dir, c.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v, %s", err, out)
	}
	return path
}

// parts are the parts of `run`, each up to the line of the trace that ends it.
var parts = []struct {
	name  string
	until *regexp.Regexp
}{
	{"start", regexp.MustCompile(`mkdirat\(\d+, "probe\.`)},
	{"probe", regexp.MustCompile(`mkdirat\(AT_FDCWD, ".*/\.eda-sidecar/state"`)},
	{"ledger", regexp.MustCompile(`mkdirat\(\d+, "probe-`)},
	{"selftest", regexp.MustCompile(`\+\+\+ killed by SIGKILL`)}, // its daemon
	{"recovery", regexp.MustCompile(`mkdirat\(\d+, "[0-9a-f-]{36}\.0"`)},
	{"job", regexp.MustCompile(`unlinkat\(\d+, "\./eda-.*AT_REMOVEDIR`)},
	{"close", regexp.MustCompile(`exit_group\(`)}, // the tool has ended before
}

// BenchmarkRun is the built program on a workspace that was used before, beside the plain program.
func BenchmarkRun(b *testing.B) {
	p, dir, m := program(b), b.TempDir(), sample.Modes{}
	run := []string{p, "run", "-w", dir, "--", "true"}
	ok(b, exec.Command(run[0], run[1:]...).Run())
	for i := 0; b.Loop(); i++ {
		for mode, argv := range map[string][]string{"true": {"true"}, "run": run, "version": {p, "version"}, "recover": {p, "recover", "-w", dir}} {
			m.Time(mode, func() { ok(b, exec.Command(argv[0], argv[1:]...).Run()) })
		}
		if i%3 == 0 {
			trace(b, m, run)
		}
	}
	m.Report(b)
}

// trace runs the program under strace, which stops it at few system calls, and times its parts.
func trace(b *testing.B, m sample.Modes, argv []string) {
	out := filepath.Join(b.TempDir(), "trace")
	strace := append([]string{"-f", "-ttt", "--seccomp-bpf", "-e", "trace=execve,mkdirat,unlinkat,exit_group", "-o", out}, argv...)
	if text, err := exec.Command("strace", strace...).CombinedOutput(); err != nil {
		b.Fatalf("strace: %v, %s", err, text)
	}
	text, err := os.ReadFile(out)
	ok(b, err)
	next, since := 0, time.Duration(0)
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 3 {
			continue
		}
		seconds, err := strconv.ParseFloat(fields[1], 64)
		ok(b, err)
		at := time.Duration(seconds * float64(time.Second))
		if since == 0 {
			since = at
		}
		if next < len(parts) && parts[next].until.MatchString(line) {
			name := "part-" + parts[next].name
			m[name] = append(m[name], at-since)
			next, since = next+1, at
		}
	}
	if next < len(parts) {
		b.Fatalf("nothing ends part %q of the run, of:\n%s", parts[next].name, text)
	}
}
