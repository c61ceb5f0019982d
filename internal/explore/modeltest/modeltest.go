// Package modeltest runs the models of a core, with its guards and without.
package modeltest

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/eda-sidecar/eda-sidecar/internal/explore"
)

// dfsSchedules is up to where a model is also searched without any reduction, which must find nothing that was not found.
const dfsSchedules = 6_000

// Holds wants body to be right under every schedule. A test calls it once: it prints the line that says what was searched.
func Holds(t testing.TB, body func(*explore.M)) {
	t.Helper()
	if replayed(t, body) {
		return
	}
	line := holds(t, body)
	dfs := explore.Explore(explore.Config{Mode: explore.DFS, MaxSchedules: dfsSchedules}, body)
	if f := dfs.Failure; f != nil && f.Kind != explore.Limit {
		t.Fatalf("found by dfs alone, so the explorer is wrong: %s", f)
	}
	if dfs.Complete {
		line += fmt.Sprintf(" dfs=%d", dfs.Schedules)
	}
	fmt.Println(line)
}

// Caught wants body to be right under every schedule, and to fail in the way of want, for a reason that contains reason, as
// soon as *mutant takes a guard away; and to fail the same way when that schedule is replayed.
func Caught(t testing.TB, mutant *bool, want explore.Kind, reason string, body func(*explore.M)) {
	t.Helper()
	if *mutant {
		t.Fatal("the guard is away before the test has taken it away")
	}
	var line string
	if os.Getenv(variable) == "" {
		line = holds(t, body)
	}
	*mutant = true
	defer func() { *mutant = false }()
	if replayed(t, body) {
		return
	}
	r := explore.Explore(explore.Config{}, body)
	f := r.Failure
	if f == nil {
		t.Fatalf("no schedule needs the guard: %d were searched, complete=%t", r.Schedules, r.Complete)
	}
	if f.Kind != want || !strings.Contains(f.Reason, reason) {
		t.Fatalf("want %s with %q, got %s", want, reason, f)
	}
	again := explore.Explore(explore.Config{Replay: f.Schedule}, body).Failure
	if again == nil || again.Kind != f.Kind || again.Reason != f.Reason || !slices.Equal(again.Trace, f.Trace) {
		t.Fatalf("the replay of %s\nis %s", f, again)
	}
	fmt.Printf("%s caught=%s at=%d\n", line, f.Kind, r.Schedules+r.Pruned)
}

// holds searches body, and returns the line that says what was searched.
func holds(t testing.TB, body func(*explore.M)) (line string) {
	t.Helper()
	r := explore.Explore(explore.Config{}, body)
	if f := r.Failure; f != nil {
		t.Fatalf("%s\n\n%s=%s shows it again", f, variable, f.Schedule)
	}
	return fmt.Sprintf("MODEL %s mode=%s schedules=%d pruned=%d threads=%d depth=%d choices=%d complete=%t",
		t.Name(), explore.DPOR, r.Schedules, r.Pruned, r.Threads, r.MaxDepth, r.Choices, r.Complete)
}

// variable holds a schedule to run instead of all.
const variable = "EXPLORE_REPLAY"

// replayed shows what happens under the schedule in the environment, if there is one. One schedule proves nothing, so the
// test fails.
func replayed(t testing.TB, body func(*explore.M)) bool {
	t.Helper()
	schedule := os.Getenv(variable)
	if schedule == "" {
		return false
	}
	r := explore.Explore(explore.Config{Replay: schedule}, body)
	if r.Failure != nil {
		t.Errorf("%s", r.Failure)
	} else {
		t.Errorf("this schedule holds:\n%s", strings.Join(r.Trace, "\n"))
	}
	return true
}
