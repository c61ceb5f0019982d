package cgroup

import (
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

func TestDoctor(t *testing.T) {
	w := newWorld(t, Options{})
	for name, checks := range map[string][]Check{"own": Doctor(t.Context(), Options{Workspace: w.ws}), "server": w.p.Checks(t.Context())} {
		seen := map[string]Check{}
		for _, c := range checks {
			seen[c.Name] = c
			if c.Status == Fail || c.Status == Warn && c.Fix == "" || c.Status == OK && c.Fix != "" {
				t.Errorf("%s: %+v", name, c)
			}
		}
		for _, want := range []string{"cgroup2", "writable", "cgroup.kill", "controllers", "entry", "self-test", "landlock", "uid", "sockets", "leftovers"} {
			if seen[want].Found == "" {
				t.Errorf("%s: no check %q in %+v", name, want, checks)
			}
		}
	}
	w.prove(w.create()) // the doctor has left the server its directory
	checks := Doctor(t.Context(), Options{Workspace: w.ws, off: switches{abi: 2}})
	if checks[0].Name != "landlock" || checks[0].Status != Fail || checks[0].Fix == "" {
		t.Errorf("%+v", checks)
	}
	data, err := json.Marshal(w.p.Capabilities())
	ok(t, err)
	for _, key := range []string{`"mount":`, `"kind":`, `"entry":`, `"landlock_abi":`, `"dir":`, `"self_test_proof_us":`} {
		if !strings.Contains(string(data), key) {
			t.Errorf("no %s in %s", key, data)
		}
	}
}

// The same tests once more where clone3 is refused, as default seccomp profiles do: the shim must pass them all.
func TestShimPassesTheSameTests(t *testing.T) {
	if refusedClone3() {
		t.Log("this is the inner run")
		return
	}
	c := exec.CommandContext(deadline(t, 60*time.Second), selfExe, "-test.run=^(TestEveryTreeDies|TestLeader|TestWait|TestTerminate|TestKillAgainstStart|TestOnlyTheJob|TestTheJob|TestGrants|TestToolCannot|TestWhatATool|TestStartRefuses|TestInherited|TestFlood|TestAdoptKills|TestShim)", "-test.v")
	c.Args[0] = os.Args[0]
	c.Env = append(os.Environ(), "EDA_TEST_REFUSE_CLONE3=1")
	out, err := c.CombinedOutput()
	if n := strings.Count(string(out), "\n--- PASS"); err != nil || n < 14 || strings.Contains(string(out), "--- SKIP") {
		t.Errorf("%v, %d passed\n%s", err, n, out)
	}
}
