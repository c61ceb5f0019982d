package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/eda-sidecar/eda-sidecar/sidecar"
	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
)

func newCall() *cobra.Command {
	var d dialing
	var session string
	var timeout time.Duration
	var asJSON bool
	c := &cobra.Command{
		Use:   "call TOOL [name=value | name:=json]...",
		Short: "Call one tool: of a server, or without one",
		Long: `Calls a tool with typed arguments. name=value is read as the tool's schema wants it, name:=json is any JSON value.

'eda-sidecar tools' lists the tools, 'eda-sidecar tools schema TOOL' the arguments of one. A call that names an output or
changes session state is a transaction in the given session, by default the caller's own; any other call is a read.
Sessions themselves: session_open name=NAME, session_show [session_id=ID], session_close session_id=ID.

With --server the tool runs there, else in this process, on the workspace. The token for a server is taken from
EDA_SIDECAR_TOKEN, --token-file, or the state directory of --workspace. An interrupt cancels the call and waits for its
end; a second one leaves at once.`,
		Example: "  eda-sidecar call yosys_synth sources=rtl/counter.v include_dirs=inc top=counter netlist=build/counter.json",
		Args:    cobra.MinimumNArgs(1),
	}
	d.workspace = workspaceFlags(c)
	c.Flags().StringVar(&d.server, "server", "", "URL of a server, such as http://127.0.0.1:8080 (default none: this process does the work)")
	c.Flags().StringVar(&d.tokenFile, "token-file", "", "file that holds the server's token")
	c.Flags().StringVar(&session, "session", job.DefaultSession, "id of the session to work in")
	c.Flags().DurationVar(&timeout, "timeout", 0, "how long the tool may run, in whole seconds, rounded up (default the tool's own)")
	c.Flags().BoolVar(&asJSON, "json", false, "print the result as JSON")
	_ = c.MarkFlagFilename("token-file") // the flag exists
	c.ValidArgsFunction = func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		return completeCall(d.workspace, args)
	}
	c.RunE = func(c *cobra.Command, argv []string) (err error) {
		words, err := parseArgs(argv[1:])
		if err != nil {
			return err
		}
		if err := wantTime(c, timeout); err != nil {
			return err
		}
		var progress func(string)
		if info, err := os.Stderr.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			progress = func(text string) { c.PrintErrf("eda-sidecar: %s: %s\n", argv[0], printable(text)) }
		}
		cl, err := d.connect(c, progress)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, cl.close()) }()
		tool, err := cl.find(argv[0])
		if err != nil {
			return err
		}
		args := tool.typed(words)
		if err := tool.flags(c.Flags(), session, timeout, args); err != nil {
			return err
		}
		answer, err := cl.follow(c.Context(), tool, args)
		if err != nil {
			return err
		}
		return printAnswer(c.OutOrStdout(), c.ErrOrStderr(), answer, asJSON)
	}
	return c
}

// offered is a tool as the server describes it.
type offered struct {
	*mcp.Tool
	properties map[string]*jsonschema.Schema
}

func (t offered) takes(name string) bool { return t.properties[name] != nil }

// flags adds what --session and --timeout say to the arguments of a tool that runs. For any other they would be ignored.
func (t offered) flags(given *pflag.FlagSet, session string, timeout time.Duration, args map[string]any) error {
	named, runs := given.Changed("session"), t.takes("timeout_s")
	switch {
	case named && !runs && t.takes("session_id"):
		return fmt.Errorf("--session: tool %q runs nothing, it takes session_id=ID", t.Name)
	case named && !runs:
		return fmt.Errorf("--session: tool %q works in no session", t.Name)
	case timeout > 0 && !runs:
		return fmt.Errorf("--timeout: tool %q runs nothing", t.Name)
	}
	if timeout > 0 {
		args["timeout_s"] = int(math.Ceil(timeout.Seconds()))
	}
	if runs && (named || !t.Annotations.ReadOnlyHint) {
		args["session_id"] = session
	}
	return nil
}

// find returns the server's tool of this name.
func (cl *client) find(name string) (offered, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var names []string
	for t, err := range cl.Tools(ctx, nil) {
		if err != nil {
			return offered{}, unreachable("the server", err)
		}
		if names = append(names, t.Name); t.Name != name {
			continue
		}
		var schema jsonschema.Schema
		text, err := json.Marshal(t.InputSchema)
		if err == nil {
			err = json.Unmarshal(text, &schema)
		}
		return offered{t, schema.Properties}, err
	}
	slices.Sort(names)
	return offered{}, fmt.Errorf("there is no tool %q (there are %s)", name, strings.Join(names, ", "))
}

// word is one argument of the command line.
type word struct {
	name, value string
	json        bool // := was written
}

// parseArgs takes name=value and name:=json apart. All mistakes are reported together.
func parseArgs(words []string) (all []word, err error) {
	var errs []error
	for _, text := range words {
		name, value, ok := strings.Cut(text, "=")
		if !ok {
			errs = append(errs, fmt.Errorf("argument %q: want name=value or name:=json", text))
			continue
		}
		w := word{name: name, value: value}
		if w.name, w.json = strings.CutSuffix(name, ":"); w.json && !json.Valid([]byte(value)) {
			errs = append(errs, fmt.Errorf("argument %q: %q is not JSON", w.name, value))
		}
		if slices.ContainsFunc(all, func(o word) bool { return o.name == w.name }) {
			errs = append(errs, fmt.Errorf("argument %q: given twice", w.name))
		}
		all = append(all, w)
	}
	return all, errors.Join(errs...)
}

// typed makes JSON of the words: of name=value what the schema wants, a list of one where it wants a list.
func (t offered) typed(words []word) map[string]any {
	args := map[string]any{}
	for _, w := range words {
		kind := ""
		if p := t.properties[w.name]; p != nil {
			kind = p.Type
		}
		switch {
		case w.json:
			args[w.name] = json.RawMessage(w.value)
		case kind == "array":
			args[w.name] = []string{w.value}
		case (kind == "boolean" || kind == "integer" || kind == "number") && json.Valid([]byte(w.value)):
			args[w.name] = json.RawMessage(w.value) // else the server says what it wants
		default:
			args[w.name] = w.value
		}
	}
	return args
}

// reply is what came back: the structured result, and what is said of it to people.
type reply struct {
	raw     json.RawMessage
	Code    job.Code `json:"code"`
	Running bool     `json:"running"`
	Job     string   `json:"job_id"`
	text    string
	isJob   bool // raw is a job.Result
}

// follow calls the tool and waits for its terminal answer. The end of ctx cancels the job, and is no reason not to wait
// for what became of it.
func (cl *client) follow(ctx context.Context, tool offered, args map[string]any) (a reply, err error) {
	if !tool.takes("wait_seconds") {
		return cl.call(ctx, tool.Name, args)
	}
	if !tool.takes("job_id") {
		args["wait_seconds"] = 1 // a job that can be cancelled has to be known by its id
	}
	for a, err = cl.call(context.WithoutCancel(ctx), tool.Name, args); err == nil && a.Running; {
		id := map[string]any{"job_id": a.Job}
		if ctx.Err() == nil {
			next, waited := cl.call(ctx, "job_wait", id)
			if ctx.Err() == nil {
				if a.Running, err = next.Running, waited; err == nil {
					a = next
				}
				continue
			}
		}
		signal.Reset() // a second interrupt ends this process: the job is being ended
		ctx = context.WithoutCancel(ctx)
		a, err = cl.call(ctx, "job_cancel", id)
	}
	if failed := new(job.Error); errors.As(err, &failed) && failed.Code == job.Busy { // the way to the server broke
		err = lost(tool.Name, a.Job, failed.Err)
	}
	a.isJob = true
	return a, err
}

func (cl *client) call(ctx context.Context, tool string, args map[string]any) (a reply, err error) {
	params := &mcp.CallToolParams{Name: tool, Arguments: args}
	params.SetProgressToken("call")
	result, err := cl.CallTool(ctx, params)
	if err != nil {
		return a, unreachable("the server", err)
	}
	if a.raw, err = json.Marshal(result.StructuredContent); err == nil {
		err = json.Unmarshal(a.raw, &a)
	}
	if text, ok := first(result.Content).(*mcp.TextContent); ok {
		a.text = text.Text
	}
	return a, err
}

func first(content []mcp.Content) mcp.Content {
	if len(content) == 0 {
		return nil
	}
	return content[0]
}

// printAnswer prints what a server reply, and returns the error that carries its exit code.
func printAnswer(w, errs io.Writer, a reply, asJSON bool) error {
	var result job.Result
	switch {
	case asJSON:
		if err := printJSON(w, a.raw); err != nil {
			return err
		}
	case a.isJob:
		if err := json.Unmarshal(a.raw, &result); err != nil {
			return err
		}
		return printResult(w, errs, result, false)
	default:
		to := w
		if a.Code != job.OK {
			to = errs
		}
		if _, err := fmt.Fprintln(to, printable(a.text)); err != nil {
			return err
		}
	}
	if a.Code == job.OK {
		return nil
	}
	return &silentError{exitOf(a.Code)}
}

// ownTools are the tools that every server has, beside those of the catalogue.
func ownTools() map[string]string {
	return map[string]string{
		"session_open": "make a session of this name, or find it", "session_show": "show one session, or all", "session_close": "destroy a session for good",
		"job_list": "list the jobs of a server", "job_wait": "wait for a job of a server", "job_cancel": "cancel a job of a server",
		"artifact_read": "read an output or the log of a job of a server",
	}
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
		for name, help := range ownTools() {
			words = append(words, name+"\t"+help)
		}
		return words, cobra.ShellCompDirectiveNoFileComp
	}
	tool, _ := cfg.Catalog.Tool(args[0]) // no such tool: nothing to complete
	if tool == nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	for _, p := range tool.Params {
		assign := "="
		if p.List {
			assign = ":="
		}
		words = append(words, p.Name+assign+"\t"+p.Doc)
	}
	return words, cobra.ShellCompDirectiveNoSpace
}
