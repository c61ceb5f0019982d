package server

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/eda-sidecar/eda-sidecar/adapters"
)

// instructions are what a model is told once; kept by a golden.
const instructions = `Runs EDA tools as transactions. Call session_open once and pass its session_id to every tool that writes. If a call fails, times out or is cancelled, nothing has changed: files and session state are published together, only after success. Paths are relative to the workspace. A long run answers {"running":true,"job_id":...}: call job_wait with that job_id until the answer has a ` + "`code`" + `. Do not start the run again; to retry safely send the same idempotency_key. code OK with verdict ` + "`findings`" + ` means the tool worked and found problems: read ` + "`diagnostics`" + `. BUSY names the job that holds the session or file: job_wait on it. TERMINATION_UNPROVEN or COMMIT_IN_DOUBT: stop and tell the user. Files and full logs: artifact_read or the resource links.`

// Tools of the server's own that other parts must know by name.
const (
	jobWait   = "job_wait"
	jobCancel = "job_cancel"
)

// tool is one entry of the catalogue.
type tool struct {
	name, title, doc string
	params           adapters.Params
	data             *jsonschema.Schema // of the answer's data; nil: any object
	hints            hints
	needs            []Capability   // one of them shows the tool
	eda              *adapters.Tool // nil: one of the server's own
	run              func(*call) answer

	full, plain *mcp.Tool // as shown: all of it, and without what only Script may give
}

// hints are what a client may assume. openWorld is always false.
type hints struct{ readOnly, destructive, idempotent bool }

// own are the server's own tools.
func own() []*tool {
	reads := hints{readOnly: true, idempotent: true}
	return []*tool{
		{
			name: "session_open", title: "Open a session", needs: []Capability{Mutate}, hints: hints{}, run: (*call).sessionOpen, data: dataOf[sessionsData](),
			doc: "Opens a session, in which tools work one after another on shared state, and returns its session_id. With a name it finds the session of that name or makes it; without one it makes a new session.",
			params: adapters.Params{
				{Name: "name", Kind: adapters.Text, Pattern: `.{1,128}`, MaxLength: 128, Doc: "Name to find the session by later, up to 128 bytes. Example: cpu."},
			},
		},
		{
			name: "session_show", title: "Show sessions", needs: []Capability{Read}, hints: reads, run: (*call).sessionShow, data: dataOf[sessionsData](),
			doc:    "Shows one session with its state, or lists your sessions. The state names what was published, by path, and what each tool found last.",
			params: adapters.Params{sessionParam(false), limitParam(25, 25), cursorParam()},
		},
		{
			name: "session_close", title: "Close a session", needs: []Capability{Mutate}, hints: hints{destructive: true, idempotent: true}, run: (*call).sessionClose, data: dataOf[sessionsData](),
			doc: "Destroys a session and its state for good; published files stay. It waits for the session's running job. Calls that wait for the session fail with SESSION_DESTROYED.",
			params: adapters.Params{
				sessionParam(true),
				{Name: "force", Kind: adapters.Bool, Default: false, Doc: "true: cancel the session's running job first."},
			},
		},
		{
			name: jobWait, title: "Wait for a job", needs: []Capability{Read, Mutate}, hints: reads, run: (*call).jobWait,
			doc:    "Waits for a job and returns its result, as often as it is asked. While the answer says running, the job goes on: call it again.",
			params: adapters.Params{jobParam(), waitParam()},
		},
		{
			name: jobCancel, title: "Cancel a job", needs: []Capability{Read, Mutate}, hints: hints{destructive: true, idempotent: true}, run: (*call).jobCancel,
			doc:    "Cancels a job, waits until its processes are proven dead, and returns how it really ended. A job that was already being published ends as if nobody had cancelled, and says so.",
			params: adapters.Params{jobParam()},
		},
		{
			name: "job_list", title: "List jobs", needs: []Capability{Read}, hints: reads, run: (*call).jobList, data: dataOf[jobsData](),
			doc: "Lists your jobs that run or ended lately, the newest first.",
			params: adapters.Params{
				sessionParam(false),
				{Name: "state", Kind: adapters.Enum, Enum: []string{"running", "done"}, Doc: "Only jobs that run, or only those that ended."},
				limitParam(50, 20), cursorParam(),
			},
		},
		{
			name: "artifact_read", title: "Read an output or a log", needs: []Capability{Read}, hints: reads, run: (*call).artifactRead, data: dataOf[artifactData](),
			doc: "Reads a part of a file that a job published, or of its log, also while it runs. data.stale says that the file is no longer what the job published. Read on at data.next_offset.",
			params: adapters.Params{
				jobParam(),
				{Name: "name", Kind: adapters.Text, Pattern: `[a-z][a-z0-9_]{0,31}`, MaxLength: 32, Required: true, Doc: "Name of an output of the job, such as netlist, or log."},
				{Name: "offset", Kind: adapters.Int, Min: 0, Max: 1 << 50, Default: int64(0), Doc: "First byte to read."},
				{Name: "limit", Kind: adapters.Int, Min: 1, Max: artifactMax, Default: int64(artifactMax), Doc: fmt.Sprintf("Bytes to read, up to %d.", artifactMax)},
				{Name: "encoding", Kind: adapters.Enum, Enum: []string{"text", "base64"}, Default: "text", Doc: "How data.content is written: text, or base64 for files that are not UTF-8."},
			},
		},
	}
}

// ofAdapter is the entry of an EDA tool, whose limits are l.
func ofAdapter(t *adapters.Tool, l adapters.Limits) *tool {
	e := &tool{name: t.Name, title: t.Title, doc: t.Doc, data: t.Data, eda: t, run: (*call).start}
	always, output := len(t.State) > 0, false
	for _, p := range t.Params {
		output = output || p.Kind == adapters.Output
		always = always || p.Kind == adapters.Output && p.Required
	}
	e.hints = hints{readOnly: !output && !always, destructive: output, idempotent: t.Deterministic}
	e.params = append(t.Arguments(), common(l, always)...)
	if always || output {
		e.params = append(e.params, keyParam())
	}
	if !always {
		e.needs = append(e.needs, Read)
	}
	if always || output {
		e.needs = append(e.needs, Mutate)
	}
	return e
}

// addTools offers the server's own tools and those whose programs were found.
func (s *Server) addTools() error {
	s.tools = own()
	for _, t := range s.o.Catalog.Tools() {
		if slices.ContainsFunc(s.tools, func(e *tool) bool { return e.name == t.Name }) {
			return fmt.Errorf("tool %q: the name is the server's own", t.Name)
		}
		if err := s.installed(t); err != nil {
			s.o.Notify(Notice{Message: "tool is not offered", Detail: fmt.Sprintf("%s: %v", t.Name, err)})
			continue
		}
		s.tools = append(s.tools, ofAdapter(t, s.o.Runner.Limits(t)))
	}
	slices.SortFunc(s.tools, func(a, b *tool) int { return cmp.Compare(a.name, b.name) })
	for _, t := range s.tools {
		if err := t.render(); err != nil {
			return fmt.Errorf("tool %q: %w", t.name, err)
		}
		s.mcp.AddTool(t.full, s.handler(t))
	}
	return nil
}

func (s *Server) installed(t *adapters.Tool) error {
	if s.o.Unchecked {
		return nil
	}
	_, err := s.o.Runner.Programs(t)
	return err
}

// render makes what tools/list shows.
func (t *tool) render() error {
	schema, err := outputSchema(dataSchema(t.data))
	if err != nil {
		return err
	}
	output, err := json.Marshal(schema)
	if err != nil {
		return err
	}
	t.full = &mcp.Tool{
		Name: t.name, Title: t.title, Description: t.doc, InputSchema: t.params.Schema(), OutputSchema: json.RawMessage(output),
		Annotations: &mcp.ToolAnnotations{
			ReadOnlyHint: t.hints.readOnly, DestructiveHint: &t.hints.destructive, IdempotentHint: t.hints.idempotent, OpenWorldHint: new(bool),
		},
	}
	plain := *t.full
	plain.InputSchema = slices.DeleteFunc(slices.Clone(t.params), func(p adapters.Param) bool { return p.Trust == adapters.Script }).Schema()
	t.plain = &plain
	return nil
}

// visible are the tools that a principal may call, sorted by name.
func (s *Server) visible(who Principal) []*mcp.Tool {
	list := []*mcp.Tool{}
	for _, t := range s.tools {
		script := t.eda != nil && t.eda.Trust == adapters.Script
		switch {
		case !slices.ContainsFunc(t.needs, who.May), script && !who.May(Script):
		case who.May(Script):
			list = append(list, t.full)
		default:
			list = append(list, t.plain)
		}
	}
	return list
}

// dataOf is the schema of the data of one of the server's own tools.
func dataOf[T any]() *jsonschema.Schema {
	s, err := jsonschema.For[T](nil)
	if err != nil {
		panic("internal error: server: data schema: " + err.Error())
	}
	return s
}
