package server

import (
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/eda-sidecar/eda-sidecar/adapters"
	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
)

// Bounds of how long one call blocks: clients give up after 60 s.
const (
	waitDefault = 45 // seconds
	waitMax     = 50
)

// idPattern is what ids look like; whether one exists is looked up.
const idPattern = `[0-9A-Za-z-]{1,64}`

func sessionParam(required bool) adapters.Param {
	return adapters.Param{
		Name: "session_id", Kind: adapters.Text, Pattern: idPattern, MaxLength: 64, Required: required,
		Doc: "Session to work in, as session_open returns it; \"default\" is your own default session. Example: default.",
	}
}

func jobParam() adapters.Param {
	return adapters.Param{Name: "job_id", Kind: adapters.Text, Pattern: idPattern, MaxLength: 64, Required: true, Doc: "Job, as a call returns it."}
}

func waitParam() adapters.Param {
	return adapters.Param{
		Name: "wait_seconds", Kind: adapters.Int, Min: 0, Max: waitMax, Default: int64(waitDefault),
		Doc: "Seconds to wait for the end. A job that is not done then answers {\"running\":true,\"job_id\":...} and goes on.",
	}
}

func keyParam() adapters.Param {
	return adapters.Param{
		Name: "idempotency_key", Kind: adapters.Text, Pattern: `[A-Za-z0-9._:-]{1,128}`, MaxLength: 128,
		Doc: "Any name for this run, for a call that names an output. For 24 h a call with the same key and arguments runs nothing: it waits for the first one's job, or has its answer; after a rollback it runs.",
	}
}

func cursorParam() adapters.Param {
	return adapters.Param{Name: "cursor", Kind: adapters.Text, Pattern: idPattern, MaxLength: 64, Doc: "next_cursor of the page before."}
}

func limitParam(most, def int64) adapters.Param {
	return adapters.Param{Name: "limit", Kind: adapters.Int, Min: 1, Max: most, Default: def, Doc: fmt.Sprintf("At most so many, up to %d.", most)}
}

// common are the arguments of every EDA tool beside its own.
func common(l adapters.Limits, session bool) adapters.Params {
	return adapters.Params{
		sessionParam(session),
		{
			Name: "timeout_s", Kind: adapters.Int, Min: 1, Max: int64(l.WallMax / time.Second),
			Doc: fmt.Sprintf("Seconds that the tool may run, from its start; by default %d.", l.Wall/time.Second),
		},
		waitParam(),
		{
			Name: "detach", Kind: adapters.Bool, Default: false,
			Doc: "true: answer at once and let the job outlive this call. Default: a call that is cancelled cancels its job.",
		},
	}
}

// outputSchema is the one shape of all answers: the fields of a result and of an answer that is pending. Nothing but the
// ids is required, as either kind must match; the root is a plain object, which older clients demand.
func outputSchema(data *jsonschema.Schema) (*jsonschema.Schema, error) {
	s, err := jsonschema.For[terminal](nil)
	more, err2 := jsonschema.For[pending](nil)
	if err := errors.Join(err, err2); err != nil {
		return nil, fmt.Errorf("schema of results: %w", err)
	}
	for _, name := range more.PropertyOrder {
		if s.Properties[name] == nil {
			s.Properties[name] = more.Properties[name]
			s.PropertyOrder = append(s.PropertyOrder, name)
		}
	}
	maps.Copy(s.Properties["log"].Properties, more.Properties["log"].Properties)
	s.Properties["log"].Required = []string{"bytes"}
	s.Properties["log"].PropertyOrder = nil
	s.Properties["data"] = data
	s.Required = []string{"job_id"}
	for _, c := range job.Codes() {
		s.Properties["code"].Enum = append(s.Properties["code"].Enum, string(c.Code))
	}
	return s, nil
}

// dataSchema is the schema of the data of a tool: nothing in it is required, as an answer may be cut.
func dataSchema(data *jsonschema.Schema) *jsonschema.Schema {
	if data == nil {
		return &jsonschema.Schema{Type: "object"}
	}
	data = data.CloneSchemas()
	data.Required = nil
	return data
}
