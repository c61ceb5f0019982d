package server_test

import (
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/eda-sidecar/eda-sidecar/sidecar"
	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
	"github.com/eda-sidecar/eda-sidecar/sidecar/server"
	"github.com/eda-sidecar/eda-sidecar/test/house/doctable"
)

var update = flag.Bool("update", false, "rewrite goldens")

// TestEveryTool calls each tool in both eras. That each answer is of the published schema and within the budget is checked
// by every call of every test.
func TestEveryTool(t *testing.T) {
	w := newWorld(t)
	for era := range eras {
		t.Run(era, func(t *testing.T) {
			c := w.connect(era, "alice")
			c.t = t
			var sessions struct {
				Sessions []struct {
					ID    string `json:"session_id"`
					Name  string `json:"name"`
					State *struct{ Artifacts map[string]any }
				}
				Next string `json:"next_cursor"`
			}
			c.call("session_open", args{}, job.OK)
			id := c.call("session_open", args{"name": era}, job.OK).Session
			if again := c.call("session_open", args{"name": era}, job.OK).Session; again != id {
				t.Errorf("session %q is found as %q", id, again)
			}
			c.call("session_show", args{"limit": 1}, job.OK).data(t, &sessions)
			if len(sessions.Sessions) != 1 || sessions.Next != sessions.Sessions[0].ID {
				t.Errorf("a page of one session: %+v", sessions)
			}
			target := "build/" + era + ".json"
			synth := args{"session_id": id, "sources": []string{"rtl/counter.v"}, "top": "counter", "netlist": target}
			a := c.call("yosys_synth", synth, job.OK)
			netlist := w.read(target)
			if len(a.Outputs) != 1 || a.Outputs[0].Bytes != int64(len(netlist)) || a.Session != id || !strings.Contains(a.text, target) {
				t.Errorf("got %s, text %q", a.raw, a.text)
			}
			c.call("session_show", args{"session_id": id}, job.OK).data(t, &sessions)
			if sessions.Sessions[0].State.Artifacts[target] == nil {
				t.Errorf("the session does not know its artifact: %+v", sessions)
			}
			c.call("iverilog_simulate", args{"sources": []string{"tb.v"}, "top": "tb"}, job.OK)
			c.call("shell_run", args{"script": w.script("fail.sh", "echo broken; exit 3")}, job.ToolFailed)
			c.call("job_list", args{"session_id": id, "state": "done"}, job.OK)
			if again := c.call("job_wait", args{"job_id": a.Job}, job.OK); again.Outputs[0] != a.Outputs[0] {
				t.Errorf("job_wait answers %s", again.raw)
			}
			c.call("job_cancel", args{"job_id": a.Job}, job.OK)
			c.readAll(a.Job, "netlist", "text", 1000, netlist)
			c.readAll(a.Job, "netlist", "base64", 16000, netlist)
			w.write(target, "changed\n")
			var part artifact
			c.call("artifact_read", args{"job_id": a.Job, "name": "netlist"}, job.OK).data(t, &part)
			if !part.Stale || part.Content != "changed\n" {
				t.Errorf("of a target that is somebody else's now: %+v", part)
			}
			c.call("artifact_read", args{"job_id": a.Job, "name": "other"}, job.InvalidArgument)
			c.call("session_close", args{"session_id": id}, job.OK)
			c.call("yosys_synth", synth, job.SessionDestroyed)
			for name := range c.schemas {
				if !c.called[name] {
					t.Errorf("%s was not called", name)
				}
			}
		})
	}
}

type artifact struct {
	Content string `json:"content"`
	Next    int64  `json:"next_offset"`
	Stale   bool   `json:"stale"`
}

// readAll reads an artifact in parts, which must add up to want.
func (c *client) readAll(id, name, encoding string, limit int, want string) {
	c.t.Helper()
	var got strings.Builder
	for p := (artifact{Next: 1}); p.Next != 0; {
		next := int64(got.Len())
		p = artifact{}
		c.call("artifact_read", args{"job_id": id, "name": name, "encoding": encoding, "limit": limit, "offset": next}, job.OK).data(c.t, &p)
		if encoding == "base64" {
			b, err := base64.StdEncoding.DecodeString(p.Content)
			ok(c.t, err)
			p.Content = string(b)
		}
		got.WriteString(p.Content)
		if p.Next != 0 && p.Next != int64(got.Len()) {
			c.t.Fatalf("at %d: next offset %d", got.Len(), p.Next)
		}
	}
	if got.String() != want {
		c.t.Errorf("%s of %s: read %d bytes, want %d: %q", encoding, name, got.Len(), len(want), cmp.Diff(want, got.String()))
	}
}

// TestArguments: what is wrong is named, before anything runs.
func TestArguments(t *testing.T) {
	w := newWorld(t)
	c := w.connect("a", "alice")
	synth := func(change args) args {
		a := args{"session_id": "default", "sources": []string{"rtl/counter.v"}, "top": "counter", "netlist": "build/a.json"}
		for name, v := range change {
			if a[name] = v; v == nil {
				delete(a, name)
			}
		}
		return a
	}
	for _, tc := range []struct {
		name, tool string
		arguments  args
		want       string
	}{
		{"unknown", "yosys_synth", synth(args{"sesion_id": "x"}), `argument "sesion_id": unknown`},
		{"near", "yosys_synth", synth(args{"netlists": "x.json"}), `did you mean "netlist"`},
		{"no_session", "yosys_synth", synth(args{"session_id": nil}), `argument "session_id": is required`},
		{"no_session_for_an_output", "shell_run", args{"script": "a.sh", "out": "a.txt"}, `argument "session_id": is required`},
		{"type", "yosys_synth", synth(args{"top": 7}), `argument "top": want string`},
		{"range", "yosys_synth", synth(args{"wait_seconds": 51}), `argument "wait_seconds": 51; from 0 to 50`},
		{"large_number", "artifact_read", args{"job_id": "x", "name": "log", "offset": json.Number("9007199254740993")}, `9007199254740993; from 0`},
		{"upwards", "yosys_synth", synth(args{"netlist": "../a.json"}), `argument "netlist"`},
		{"key", "yosys_synth", synth(args{"idempotency_key": "two words"}), `argument "idempotency_key"`},
		{"no_job", "job_wait", args{"job_id": "none"}, `there is no job "none"`},
		{"ceiling", "yosys_synth", synth(args{"timeout_s": 1e6}), `argument "timeout_s"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if a := c.call(tc.tool, tc.arguments, job.InvalidArgument); !strings.Contains(a.Message, tc.want) || !strings.Contains(a.text, "Nothing has changed") {
				t.Errorf("got %q, want %q; text %q", a.Message, tc.want, a.text)
			}
		})
	}
	if _, err := c.try(t.Context(), "no_such_tool", nil); err == nil || !strings.Contains(err.Error(), "unknown tool") {
		t.Errorf("unknown tool: %v", err)
	}
	if got := w.read("build"); got != "absent" {
		t.Errorf("build: %q", got)
	}
}

// TestCatalogue keeps what clients are shown.
func TestCatalogue(t *testing.T) {
	w := newWorld(t)
	shown := map[string][]string{}
	var all []*mcp.Tool
	for name := range users {
		c := w.connect("b", name)
		list, err := c.ListTools(t.Context(), nil)
		ok(t, err)
		for _, tl := range list.Tools {
			shown[name] = append(shown[name], tl.Name)
		}
		if name != "alice" {
			continue
		}
		all = list.Tools
		fresh, err := w.connect("a", name).ListTools(t.Context(), nil)
		ok(t, err)
		if fresh.TTLMs != 300_000 || fresh.CacheScope != "private" {
			t.Errorf("to be cached: %+v", fresh.Cacheable)
		}
		again, err := w.connect("b", name).ListTools(t.Context(), nil)
		ok(t, err)
		first, err := json.Marshal(list)
		ok(t, err)
		second, err := json.Marshal(again)
		ok(t, err)
		if string(first) != string(second) || len(first) > 256<<10 {
			t.Errorf("tools/list: %d and %d bytes, which should be the same, and few", len(first), len(second))
		}
		if instructions := c.InitializeResult().Instructions; len(instructions) > 1900 {
			t.Errorf("instructions have %d bytes", len(instructions))
		} else {
			golden(t, "instructions.txt", instructions+"\n")
		}
	}
	reads := []string{"artifact_read", "iverilog_simulate", "job_cancel", "job_list", "job_wait", "session_show"}
	full := []string{"artifact_read", "iverilog_simulate", "job_cancel", "job_list", "job_wait", "session_close", "session_open", "session_show", "shell_run", "yosys_synth"}
	plain := slices.DeleteFunc(slices.Clone(full), func(n string) bool { return n == "shell_run" })
	want := map[string][]string{"alice": full, "bob": full, "plain": plain, "reader": reads, "chief": reads, "master": plain}
	if d := cmp.Diff(want, shown); d != "" {
		t.Error(d)
	}
	var text, table strings.Builder
	table.WriteString("| tool | what it does | hints | arguments |\n|---|---|---|---|\n")
	for _, tl := range all {
		if first, _, _ := strings.Cut(tl.Description, ". "); len(first) > 120 || len(tl.Description) > 1000 {
			t.Errorf("%s: description of %d bytes, its first sentence of %d", tl.Name, len(tl.Description), len(first))
		}
		if tl.Name == "shell_run" {
			continue
		}
		a := tl.Annotations
		fmt.Fprintf(&text, "%s: %s\n  readOnly %t, destructive %t, idempotent %t, openWorld %t\n  %s\n", tl.Name, tl.Title, a.ReadOnlyHint, *a.DestructiveHint, a.IdempotentHint, *a.OpenWorldHint, tl.Description)
		schema, err := json.MarshalIndent(tl.InputSchema, "  ", "  ")
		ok(t, err)
		fmt.Fprintf(&text, "  %s\n\n", schema)
		fmt.Fprintf(&table, "| `%s` | %s | %s | %s |\n", tl.Name, sentence(tl.Description), hints(a), arguments(t, tl))
	}
	golden(t, "tools.txt", text.String())
	doctable.Check(t, *update, "docs/mcp.md", "tools", table.String())
	doctable.Check(t, *update, "docs/mcp.md", "resources", resourceTable(t, w.connect("b", "alice")))
	notice := <-w.notices
	if notice.Message != "tool is not offered" || !strings.Contains(notice.Detail, "nobody_has") {
		t.Errorf("got notice %+v", notice)
	}
}

// sentence is the first one of a description.
func sentence(text string) string {
	first, _, _ := strings.Cut(text, ". ")
	return strings.TrimSuffix(first, ".") + "."
}

func hints(a *mcp.ToolAnnotations) string {
	var words []string
	for word, is := range map[string]bool{"read-only": a.ReadOnlyHint, "destructive": *a.DestructiveHint, "idempotent": a.IdempotentHint} {
		if is {
			words = append(words, word)
		}
	}
	slices.Sort(words)
	return strings.Join(words, ", ")
}

// arguments are the names of a tool's arguments, the required ones first and bold.
func arguments(t *testing.T, tl *mcp.Tool) string {
	t.Helper()
	text, err := json.Marshal(tl.InputSchema)
	ok(t, err)
	var schema jsonschema.Schema
	ok(t, json.Unmarshal(text, &schema))
	var required, rest []string
	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		if slices.Contains(schema.Required, name) {
			required = append(required, "**`"+name+"`**")
		} else {
			rest = append(rest, "`"+name+"`")
		}
	}
	return strings.Join(append(required, rest...), " ")
}

func resourceTable(t *testing.T, c *client) string {
	t.Helper()
	lines := map[string]bool{}
	for r, err := range c.Resources(t.Context(), nil) {
		ok(t, err)
		lines[fmt.Sprintf("| `%s` | %s |\n", r.URI, r.Title)] = true
	}
	for r, err := range c.ResourceTemplates(t.Context(), nil) {
		ok(t, err)
		lines[fmt.Sprintf("| `%s` | %s |\n", r.URITemplate, r.Title)] = true
	}
	return "| URI | content |\n|---|---|\n" + strings.Join(slices.Sorted(maps.Keys(lines)), "")
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := "testdata/" + name
	if *update {
		ok(t, os.MkdirAll("testdata", 0o755))
		ok(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	ok(t, err)
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s (run with -update):\n%s", path, d)
	}
}

// TestNameIsTaken: a declared tool cannot stand for one of the server's own.
func TestNameIsTaken(t *testing.T) {
	w := newWorld(t)
	file := filepath.Join(t.TempDir(), "config.yaml")
	ok(t, os.WriteFile(file, []byte(strings.Replace(tools, "nobody_has", "job_wait", 1)), 0o600))
	cfg, err := sidecar.LoadConfig(sidecar.Flags{Workspace: w.dir, Config: file})
	ok(t, err)
	_, err = server.New(server.Options{Registry: w.registry, Runner: w.engine.Runner, Catalog: cfg.Catalog, Ledger: w.engine.Ledger.Reader})
	if err == nil || !strings.Contains(err.Error(), `"job_wait"`) {
		t.Errorf("got %v", err)
	}
}
