package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/eda-sidecar/eda-sidecar/adapters"
	"github.com/eda-sidecar/eda-sidecar/sidecar"
	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
)

func newToolsCheck(flags *sidecar.Flags) *cobra.Command {
	var example string
	c := &cobra.Command{
		Use:   "check TOOL --example DIR",
		Short: "Run a tool on an example and check what every tool must keep",
		Long: `Runs the tool on copies of DIR, with the arguments in DIR/args.json (a JSON object), and checks: the call commits; the
same call in another workspace gives the same bytes; planning twice gives the same plan; a cancelled call and a call
that may take no time change nothing. DIR itself is not touched. Exit status 1 if a check fails.`,
		Example: "  eda-sidecar tools check yosys_synth --example examples/counter",
		Args:    cobra.ExactArgs(1),
	}
	c.Flags().StringVar(&example, "example", "", "directory with inputs and args.json (required)")
	_ = c.MarkFlagDirname("example")  // the flag exists
	_ = c.MarkFlagRequired("example") // as above
	c.RunE = func(c *cobra.Command, argv []string) error {
		cfg, err := load(flags)
		if err != nil {
			return err
		}
		tool, hint := cfg.Catalog.Tool(argv[0])
		if tool == nil {
			return fmt.Errorf("there is no tool %q (%s)", argv[0], hint)
		}
		text, err := os.ReadFile(filepath.Join(example, "args.json"))
		if err != nil {
			return fmt.Errorf("--example: %w", err)
		}
		var raw map[string]json.RawMessage
		if err := json.Unmarshal(text, &raw); err != nil {
			return fmt.Errorf("%s: %w", filepath.Join(example, "args.json"), err)
		}
		args, err := tool.Decode(raw)
		if err != nil {
			return &job.Error{Code: job.InvalidArgument, Op: "check " + tool.Name, Err: err}
		}
		k := &check{tool: tool, args: args, example: example, cfg: cfg, out: c.OutOrStdout()}
		if err := k.run(c.Context()); err != nil {
			return err
		}
		if k.failed {
			return &silentError{exitFailed}
		}
		return nil
	}
	return c
}

// check is one run of the checks on one tool.
type check struct {
	tool    *adapters.Tool
	args    adapters.Args
	example string
	cfg     sidecar.Config
	out     io.Writer
	failed  bool
}

func (k *check) say(err error, what string) error {
	line := "ok   " + what + "\n"
	if err != nil {
		k.failed = true
		line = fmt.Sprintf("FAIL %s: %s\n", what, printable(err.Error()))
	}
	_, err = io.WriteString(k.out, line)
	return err
}

func (k *check) run(ctx context.Context) error {
	first, err := k.workspace()
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(first) }() // a temporary directory
	second, err := k.workspace()
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(second) }() // as above
	a, err := k.call(ctx, first, job.Request{})
	if err != nil {
		return err
	}
	b, err := k.call(ctx, second, job.Request{})
	if err != nil {
		return err
	}
	before, err := snapshot(first)
	if err != nil {
		return err
	}
	gone, cancel := context.WithCancel(ctx)
	cancel()
	cancelled, err := k.call(gone, first, job.Request{})
	if err != nil {
		return err
	}
	late, err := k.call(ctx, first, job.Request{Timeout: time.Nanosecond})
	if err != nil {
		return err
	}
	after, err := snapshot(first)
	if err != nil {
		return err
	}
	return errors.Join(
		k.say(outcome(a, job.OK), "the example commits: "+a.Summary),
		k.say(outcome(b, job.OK), "it commits in another workspace"),
		k.say(k.sameBytes(a, first, second), "both gave the same bytes"),
		k.say(k.samePlan(), "planning twice gives the same plan"),
		k.say(outcome(cancelled, job.CodeCancelled), "a cancelled call says so"),
		k.say(outcome(late, job.ToolTimeout), "a call without time times out"),
		k.say(differ(before, after), "neither changed anything"),
	)
}

// workspace copies the example into a new temporary workspace.
func (k *check) workspace() (string, error) {
	dir, err := os.MkdirTemp("", "eda-sidecar-check.")
	if err != nil {
		return "", err
	}
	return dir, os.CopyFS(dir, os.DirFS(k.example))
}

func (k *check) call(ctx context.Context, workspace string, req job.Request) (job.Result, error) {
	cfg := k.cfg
	cfg.Workspace, cfg.StateDir = workspace, filepath.Join(workspace, ".eda-sidecar", "state")
	s, err := sidecar.Open(context.WithoutCancel(ctx), cfg)
	if err != nil {
		return job.Result{}, err
	}
	req.Tool, req.Args, req.Principal, req.Script = k.tool, k.args, principal, true
	r := s.Runner.Run(ctx, req)
	return r, s.Close()
}

func outcome(r job.Result, want job.Code) error {
	if r.Code != want {
		return fmt.Errorf("%s, want %s: %s", r.Code, want, r.Message)
	}
	return nil
}

// sameBytes compares the outputs of two runs. A tool that does not promise equal bytes is excused.
func (k *check) sameBytes(r job.Result, first, second string) error {
	if !k.tool.Deterministic {
		return nil
	}
	for _, o := range r.Outputs {
		x, errX := os.ReadFile(filepath.Join(first, o.Path))
		y, errY := os.ReadFile(filepath.Join(second, o.Path))
		if err := errors.Join(errX, errY); err != nil {
			return err
		}
		if !bytes.Equal(x, y) {
			return fmt.Errorf("%s differs", o.Path)
		}
	}
	return nil
}

func (k *check) samePlan() error {
	var slots []string
	for i, o := range k.args.Outputs() {
		slots = append(slots, fmt.Sprintf("../s%d/out%s", i, filepath.Ext(o.Target)))
	}
	bound := k.args.Bind(slots)
	x, errX := k.tool.Prepare(bound)
	y, errY := k.tool.Prepare(bound)
	if err := errors.Join(errX, errY); err != nil {
		return err
	}
	if !reflect.DeepEqual(x, y) {
		return errors.New("the plans differ")
	}
	return nil
}

// snapshot reads every file of a workspace but our own.
func snapshot(dir string) (map[string]string, error) {
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.Name() == ".eda-sidecar":
			return filepath.SkipDir
		case d.Type().IsRegular():
			b, err := os.ReadFile(path)
			files[strings.TrimPrefix(path, dir)] = string(b)
			return err
		}
		return nil
	})
	return files, err
}

func differ(before, after map[string]string) error {
	if reflect.DeepEqual(before, after) {
		return nil
	}
	return errors.New("files differ")
}
