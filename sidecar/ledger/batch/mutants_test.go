//go:build !edamodel

package batch

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestMutants removes each guard in turn, by an overlay in which its constant is true: the named test must fail.
func TestMutants(t *testing.T) {
	if os.Getenv("BATCH_MUTANT") != "" {
		return // we are the test of a mutant
	}
	const file = "mutants_off.go"
	source, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	path, err := filepath.Abs(file)
	if err != nil {
		t.Fatal(err)
	}
	caught := map[string]string{
		"loseWakeup": "TestWake", "failOnlyFirst": "TestFates", "ackLateRider": "TestWake", "sinkBeforeDurable": "TestSinks",
		"automatonNotRestored": "TestOrders", "refuseWholeBatch": "TestFates", "commitAfterPoison": "TestPoison",
	}
	names := regexp.MustCompile(`(?m)^\t(\w+) += false$`).FindAllStringSubmatch(string(source), -1)
	if len(names) != len(caught) {
		t.Errorf("%d mutants, %d tests", len(names), len(caught))
	}
	for _, m := range names {
		name := m[1]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mutated := strings.Replace(string(source), m[0], strings.Replace(m[0], "false", "true", 1), 1)
			out, err := test(t, path, mutated)
			if want := "--- FAIL: " + caught[name] + " "; err == nil || !strings.Contains(out, want) {
				t.Errorf("not caught by %s: %v\n%s", caught[name], err, out)
			}
		})
	}
	if out, err := test(t, path, string(source)); err != nil { // without a mutant the same run passes
		t.Errorf("%v\n%s", err, out)
	}
}

// test runs this package's tests with another text of one file.
func test(t *testing.T, path, text string) (string, error) {
	t.Helper()
	dir := t.TempDir()
	replace := map[string]map[string]string{"Replace": {path: filepath.Join(dir, "mutant.go")}}
	overlay, err := json.Marshal(replace)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(replace["Replace"][path], []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "test", "-vet=off", "-timeout=60s", "-overlay", filepath.Join(dir, "overlay.json"), ".")
	cmd.Env = append(os.Environ(), "BATCH_MUTANT=1", "GOFLAGS=")
	out, err := cmd.CombinedOutput()
	return string(out), err
}
