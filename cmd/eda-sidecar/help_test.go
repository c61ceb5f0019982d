package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// TestHelp: every command explains itself with an example that it understands, and refuses what it does not know.
func TestHelp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	commands := 0
	var visit func(c *cobra.Command, path []string)
	visit = func(c *cobra.Command, path []string) {
		for _, sub := range c.Commands() {
			visit(sub, append(slices.Clone(path), sub.Name()))
		}
		if len(path) == 0 {
			return
		}
		commands++
		help := w.do(append(slices.Clone(path), "--help")...)
		if help.exit != exitOK || help.err != "" {
			t.Errorf("%q --help: %v", path, help)
		}
		for _, part := range []string{"Usage:", "Examples:\n  eda-sidecar " + strings.Join(path, " "), "Flags:"} {
			if !strings.Contains(help.out, part) {
				t.Errorf("%q --help lacks %q", path, part)
			}
		}
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" {
				t.Errorf("%q: --%s has no text", path, f.Name)
			}
		})
		a := w.do(append(slices.Clone(path), "--nonsense")...)
		if a.exit != exitUsage || !strings.Contains(a.err, "--nonsense") || !strings.Contains(a.err, "hint: ") || a.out != "" {
			t.Errorf("%q --nonsense: %v", path, a)
		}
	}
	visit(newRoot(), nil)
	if commands < 9 {
		t.Errorf("%d commands: the walk sees too little", commands)
	}
	for _, args := range [][]string{{"nonsense"}, {"audit", "nonsense"}, {"tools", "nonsense"}, {"recover", "x"}, {"doctor", "x"}, {"version", "x"}, {"run"}, {"call"}} {
		if a := w.do(args...); a.exit != exitUsage || !strings.Contains(a.err, "hint: ") || a.out != "" {
			t.Errorf("%q: %v", args, a)
		}
	}
	// A mistake touches nothing.
	if names := w.list("."); !slices.Equal(names, []string{"build"}) {
		t.Errorf("the workspace holds %q", names)
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if a := w.do("completion", shell); a.exit != exitOK || !strings.Contains(a.out, "eda-sidecar") {
			t.Errorf("completion %s: %v", shell, a)
		}
	}
	r := w.other("bash", "-n")
	r.cmd.Stdin = strings.NewReader(w.do("completion", "bash").out)
	if a := r.start().wait(); a.exit != 0 {
		t.Errorf("bash refuses the completion: %v", a)
	}
	if a := w.do("__complete", "call", "yosys"); !strings.Contains(a.out, "yosys_synth") {
		t.Errorf("completion of a tool: %v", a)
	}
	if a := w.do("__complete", "call", "yosys_synth", ""); !strings.Contains(a.out, "netlist=") || !strings.Contains(a.out, "sources:=") {
		t.Errorf("completion of an argument: %v", a)
	}
}

// TestJSON: with --json the standard output is JSON, whatever happens; a result, and what stands in the way of one, has a code.
func TestJSON(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.want(w.sh("echo new >{x}", "x=build/a.v"), exitOK, "OK")
	for _, c := range []struct {
		exit int
		args []string
	}{
		{exitOK, []string{"run", "--json", "--", "printf", `\001\377"\\ \033[31m`}},
		{exitFailed, []string{"run", "--json", "--", "false"}},
		{exitTimeout, []string{"run", "--json", "--timeout=100ms", "--", "sleep", "1000"}},
		{exitUsage, []string{"run", "--json", "--", "no-such-program"}},
		{exitUsage, []string{"run", "--json", "--out", "x=/etc/passwd", "--", "cp", "build/a.v", "{x}"}},
		{exitUsage, []string{"run", "--json", "--out", "x", "--", "true"}},
		{exitUsage, []string{"run", "--json", "-w", "none", "--", "true"}},
		{exitUsage, []string{"call", "--json", "yosys_synth"}},
		{exitUsage, []string{"call", "--json", "yosys_sinth"}},
		{exitOK, []string{"tools", "--json"}},
		{exitOK, []string{"tools", "schema"}},
		{exitOK, []string{"tools", "schema", "yosys_synth"}},
		{exitOK, []string{"doctor", "--json"}},
		{exitUsage, []string{"doctor", "--json", "-w", "none"}},
		{exitOK, []string{"recover", "--json"}},
		{exitOK, []string{"recover", "--dry-run", "--json"}},
		{exitOK, []string{"audit", "--json"}},
		{exitOK, []string{"audit", "verify", "--json"}},
		{exitOK, []string{"version", "--json"}},
	} {
		a := w.do(c.args...)
		if a.exit != c.exit {
			t.Errorf("%q: %v", c.args, a)
		}
		for d := json.NewDecoder(strings.NewReader(a.out)); d.More(); {
			var v any
			if err := d.Decode(&v); err != nil {
				t.Errorf("%q prints no JSON: %v: %q", c.args, err, short(a.out))
				break
			}
			if c.args[0] == "run" || c.args[0] == "call" {
				if exitOf(a.Code) != a.exit || a.Code == "" {
					t.Errorf("%q: exit %d, code %q", c.args, a.exit, a.Code)
				}
			}
		}
		if a.out == "" || a.exit != exitOK && a.Code == "" {
			t.Errorf("%q says nothing: %v", c.args, a)
		}
	}
	w.sound()
}
