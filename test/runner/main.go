// Command runner runs every test of the repository, and believes go test only as far as its event stream carries it:
// go test exits 0 for a mistyped filter, a package without tests, a skipped subtest and a cached result.
//
// It prints one line a package, the output of what failed, the reason of every refusal, and as its last line
// "N passed, N failed". Its exit status is 0 only if everything ran, nothing was skipped, and all passed.
package main

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
)

const module = "github.com/eda-sidecar/eda-sidecar"

// noTests lists the packages that may have none, by path below the module, with the reason.
var noTests = map[string]string{
	"cgroup/internal/witness":     "tested from cgroup, the one package that may mint proofs",
	"sidecar/durable/durabletest": "test seams alone, exercised by the tests of txn, sidecar and test/crash",
}

// noRace lists the packages whose tests run without the race detector, with the reason.
var noRace = map[string]string{
	"test/crash":  "thousands of recoveries one after another; the jobs before them run raced in sidecar",
	"test/house":  "one goroutine reads source files; the detector only costs time",
	"test/runner": "one goroutine reads recorded streams",
}

// tags are the builds in which guards can be taken away: the negative controls of the cores are test files of these builds.
// The race detector sees nothing in models: their threads are coroutines, whose hand-overs order everything.
var tags = []struct {
	name string
	race bool
}{{"edamodel", false}, {"edafault", true}}

// batch is one go test command: packages of one module that are built alike.
type batch struct {
	dir      string // of the module, relative to the root
	tag      string // of the build; may be empty
	race     bool
	packages []string
}

func main() {
	r := newReport(func(s string) { fmt.Print(s) })
	if err := run(r); err != nil {
		r.refuse("runner", err.Error())
	}
	if !r.close() {
		os.Exit(1)
	}
}

// run tests the main module and the nested one of the linters.
func run(r *report) error {
	if len(os.Args) > 1 {
		return fmt.Errorf("it takes no arguments, got %q: a filtered run proves nothing", os.Args[1:])
	}
	goflags, err := command(".", "env", "GOFLAGS").Output() // also what go env -w has set
	if err != nil {
		return fmt.Errorf("go env GOFLAGS: %w", err)
	}
	if err := checkFlags(strings.TrimSpace(string(goflags))); err != nil {
		return err
	}
	plain, err := list(".", "")
	if err != nil {
		return err
	}
	linters, err := list("test/lint", "")
	if err != nil {
		return err
	}
	batches := append(plan(r, plain), batch{dir: "test/lint", packages: slices.Sorted(maps.Keys(linters))})
	for _, tag := range tags {
		tagged, err := list(".", tag.name)
		if err != nil {
			return err
		}
		if only := differing(plain, tagged); len(only) > 0 {
			batches = append(batches, batch{dir: ".", tag: tag.name, race: tag.race, packages: only})
		}
	}
	for _, b := range batches {
		if err := test(r, b); err != nil {
			return fmt.Errorf("go test in %s: %w", b.dir, err)
		}
	}
	return nil
}

// list returns the packages of a module with their test files, as go list prints them.
func list(dir, tag string) (map[string]string, error) {
	out, err := command(dir, "list", "-tags="+tag, "-f", "{{.ImportPath}} {{.TestGoFiles}}{{.XTestGoFiles}}", "./...").Output()
	if err != nil {
		return nil, fmt.Errorf("go list in %s: %w", dir, err)
	}
	packages := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, files, _ := strings.Cut(strings.TrimSpace(line), " ")
		packages[path] = files
	}
	return packages, nil
}

// differing returns the packages that have other test files in b than in a.
func differing(a, b map[string]string) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(b)), func(path string) bool { return a[path] == b[path] })
}

// checkFlags refuses every flag in GOFLAGS that is not known to leave the set of tests, and their checks, as it is.
func checkFlags(goflags string) error {
	for flag := range strings.FieldsSeq(goflags) {
		name, _, _ := strings.Cut(strings.TrimLeft(flag, "-"), "=")
		if !slices.Contains([]string{"buildvcs", "mod", "modcacherw", "trimpath", "p"}, name) {
			return fmt.Errorf("GOFLAGS has %s: unset it, a filtered or altered run proves nothing", flag)
		}
	}
	return nil
}

// plan sorts the packages into batches, and refuses those that have no tests and no excuse.
func plan(r *report, listed map[string]string) []batch {
	plain, raced := batch{dir: "."}, batch{dir: ".", race: true}
	for _, path := range slices.Sorted(maps.Keys(listed)) {
		name, _ := strings.CutPrefix(path, module+"/")
		switch has, excused := listed[path] != "[][]", noTests[name] != ""; {
		case has && excused:
			r.refuse(path, "is excused from having tests, and has some: drop the excuse")
		case !has && !excused:
			r.refuse(path, "has no tests, and no reason for it")
		case !has:
		case noRace[name] != "":
			plain.packages = append(plain.packages, path)
		default:
			raced.packages = append(raced.packages, path)
		}
	}
	return slices.DeleteFunc([]batch{plain, raced}, func(b batch) bool { return len(b.packages) == 0 })
}

// test runs one batch, two packages at a time: as many as the machines that this is made for have cores.
func test(r *report, b batch) error {
	args := []string{"test", "-json", "-count=1", "-vet=all", "-p=2", "-timeout=10m", "-tags=" + b.tag, fmt.Sprintf("-race=%t", b.race)}
	cmd := command(b.dir, append(args, b.packages...)...)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	r.expect(b.packages, b.tag)
	readErr := r.read(stdout)
	r.settle(readErr, cmd.Wait())
	return nil
}

// command is go ARGS in dir, without variables that change what tests do.
func command(dir string, args ...string) *exec.Cmd {
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "GODEBUG=") || strings.HasPrefix(v, "EXPLORE_REPLAY=")
	})
	return cmd
}
