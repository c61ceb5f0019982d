package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/eda-sidecar/eda-sidecar/adapters"
	"github.com/eda-sidecar/eda-sidecar/sidecar"
	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
)

func newCall() *cobra.Command {
	var session string
	var timeout time.Duration
	var asJSON bool
	c := &cobra.Command{
		Use:   "call TOOL [name=value | name:=json]...",
		Short: "Call one EDA tool as a transaction, without a server",
		Long: `Calls a tool with typed arguments. name=value is a string, name:=json is any JSON value: a list, a number, true.

'eda-sidecar tools' lists the tools, 'eda-sidecar tools schema TOOL' the arguments of one. A call that names an output or
changes session state is a transaction in the given session, by default the caller's own; any other call is a read.
Sessions themselves: session_open name=NAME, session_show [session_id=ID], session_close session_id=ID.`,
		Example: "  eda-sidecar call yosys_synth sources:='[\"rtl/counter.v\"]' include_dirs:='[\"inc\"]' top=counter netlist=build/counter.json",
		Args:    cobra.MinimumNArgs(1),
	}
	flags := workspaceFlags(c)
	c.Flags().StringVar(&session, "session", job.DefaultSession, "id of the session to work in")
	c.Flags().DurationVar(&timeout, "timeout", 0, "how long the tool may run (default the tool's own)")
	c.Flags().BoolVar(&asJSON, "json", false, "print the result as JSON")
	c.ValidArgsFunction = func(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		return completeCall(flags, args)
	}
	c.RunE = func(c *cobra.Command, argv []string) error {
		cfg, err := load(flags)
		if err != nil {
			return err
		}
		raw, err := parseArgs(argv[1:])
		if err != nil {
			return err
		}
		if _, ok := sessionCalls()[argv[0]]; ok {
			return callSession(c, flags, argv[0], raw, asJSON)
		}
		tool, hint := cfg.Catalog.Tool(argv[0])
		if tool == nil {
			return fmt.Errorf("there is no tool %q (%s)", argv[0], hint)
		}
		args, err := tool.Decode(raw)
		if err != nil {
			return &job.Error{Code: job.InvalidArgument, Op: "call " + tool.Name, Err: err}
		}
		if timeout < 0 {
			return fmt.Errorf("--timeout %v: want a duration above zero", timeout)
		}
		s, cfg, err := open(c, flags)
		if err != nil {
			return err
		}
		defer func() { _ = s.Close() }() // the next start heals what is left
		req := job.Request{
			Tool: tool, Args: args, Digest: job.Digest(raw), Principal: principal, Script: cfg.AllowScript, Timeout: timeout,
		}
		if info, err := os.Stderr.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			req.Progress = func(p adapters.Progress) { c.PrintErrf("eda-sidecar: %s: %s\n", tool.Name, printable(p.Message)) }
		}
		if tool.Mutates(args) || c.Flags().Changed("session") {
			req.Session = session
		}
		return printResult(c.OutOrStdout(), c.ErrOrStderr(), s.Runner.Run(c.Context(), req), asJSON)
	}
	return c
}

// parseArgs turns name=value and name:=json into the arguments of a call. All mistakes are reported together.
func parseArgs(words []string) (map[string]json.RawMessage, error) {
	raw := map[string]json.RawMessage{}
	var errs []error
	for _, word := range words {
		name, value, ok := strings.Cut(word, "=")
		if !ok {
			errs = append(errs, fmt.Errorf("argument %q: want name=value or name:=json", word))
			continue
		}
		text, err := json.Marshal(value)
		if plain, isJSON := strings.CutSuffix(name, ":"); isJSON {
			name, text = plain, []byte(value)
			if !json.Valid(text) {
				err = fmt.Errorf("argument %q: %q is not JSON", name, value)
			}
		}
		if raw[name] != nil {
			err = fmt.Errorf("argument %q: given twice", name)
		}
		errs = append(errs, err)
		raw[name] = text
	}
	return raw, errors.Join(errs...)
}

func completeCall(flags *sidecar.Flags, args []string) (words []string, d cobra.ShellCompDirective) {
	cfg, err := sidecar.LoadConfig(*flags)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	if len(args) == 0 {
		for _, t := range cfg.Catalog.Tools() {
			words = append(words, t.Name+"\t"+t.Title)
		}
		for name, call := range sessionCalls() {
			words = append(words, name+"\t"+call.help)
		}
		return words, cobra.ShellCompDirectiveNoFileComp
	}
	tool, _ := cfg.Catalog.Tool(args[0]) // no such tool: nothing to complete
	if tool == nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	for _, p := range tool.Params {
		assign := "="
		if p.List || p.Kind == adapters.Int || p.Kind == adapters.Bool {
			assign = ":="
		}
		words = append(words, p.Name+assign+"\t"+p.Doc)
	}
	return words, cobra.ShellCompDirectiveNoSpace
}
