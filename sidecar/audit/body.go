package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/eda-sidecar/eda-sidecar/internal/strictjson"
)

// Bounds of one body. MaxBody keeps a page of 500 bodies, and a message that carries one, bounded.
const (
	MaxBody  = 256 << 10 // bytes
	maxName  = 1 << 10   // bytes of job, session, tool, principal, request id and source
	maxDepth = 32
)

const (
	typePrefix   = "io.eda-sidecar."
	sourcePrefix = "/eda-sidecar/"
)

// wire is CloudEvents 1.0 in its JSON form, with the sequence extension.
type wire struct {
	SpecVersion string          `json:"specversion"`
	ID          string          `json:"id"`
	Source      string          `json:"source"`
	Type        string          `json:"type"`
	Subject     string          `json:"subject,omitempty"`
	Time        string          `json:"time"`
	ContentType string          `json:"datacontenttype"`
	Sequence    string          `json:"sequence"`
	Data        json.RawMessage `json:"data"`
}

// Entry is an event with its place in the trail of one workspace.
type Entry struct {
	Event
	Seq       int64 // from 1, without gaps
	Workspace string
}

// Encode returns the body of e: a CloudEvents 1.0 JSON object of at most [MaxBody] bytes. The error wraps [ErrEvent].
func Encode(e Entry) (body []byte, err error) {
	defer invalid("encode", &err)
	if err := e.check(); err != nil {
		return nil, err
	}
	data := make(map[string]any, len(e.Data)+5)
	maps.Copy(data, e.Data)
	for key, value := range e.names() {
		if _, taken := data[key]; taken {
			return nil, fmt.Errorf("data names %q", key)
		}
		if *value != "" {
			data[key] = *value
		}
	}
	raw, err := json.Marshal(data)
	if err != nil {
		return nil, err
	}
	w := e.wire()
	w.Data = raw
	body, err = json.Marshal(w)
	if err == nil && len(body) > MaxBody {
		err = fmt.Errorf("%d bytes", len(body))
	}
	if err == nil {
		err = strictjson.Check(body, maxDepth, 1) // names that are not UTF-8 become one; what is written must read back
	}
	return body, err
}

// Decode reads a body strictly: bounded, no unknown, missing or doubled member, nothing behind it.
// Numbers in Data are json.Number. The error wraps [ErrEvent].
func Decode(body []byte) (e Entry, err error) {
	defer invalid("decode", &err)
	var w wire
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&w); err != nil {
		return e, err
	}
	if len(body) > MaxBody || dec.InputOffset() != int64(len(body)) {
		return e, errors.New("too long, or bytes behind the object")
	}
	if err := strictjson.Check(body, maxDepth, 1); err != nil {
		return e, err
	}
	e.Kind, e.Job, e.Workspace = Kind(strings.TrimPrefix(w.Type, typePrefix)), w.Subject, strings.TrimPrefix(w.Source, sourcePrefix)
	n := "0"
	if e.Job != "" {
		n = strings.TrimPrefix(w.ID, e.Job+"/")
	}
	var errs [3]error
	e.Seq, errs[0] = strconv.ParseInt(w.Sequence, 10, 64)
	e.N, errs[1] = strconv.Atoi(n)
	e.At, errs[2] = time.Parse(time.RFC3339Nano, w.Time)
	if err := errors.Join(errs[:]...); err != nil {
		return e, err
	}
	want := e.wire()
	if want.Data = w.Data; !reflect.DeepEqual(w, want) {
		return e, errors.New("not what an event is encoded as")
	}
	return e, e.takeData(w.Data)
}

// wire returns the form in which e is stored, without its data.
func (e *Entry) wire() wire {
	id := "ledger/" + strconv.FormatInt(e.Seq, 10)
	if e.Job != "" {
		id = e.Job + "/" + strconv.Itoa(e.N)
	}
	return wire{
		SpecVersion: "1.0", ID: id, Source: sourcePrefix + e.Workspace, Type: typePrefix + string(e.Kind),
		Subject: e.Job, Time: e.At.UTC().Format(time.RFC3339Nano), ContentType: "application/json",
		Sequence: fmt.Sprintf("%020d", e.Seq), // the extension wants a string that sorts
	}
}

// takeData moves the names that every event carries out of the decoded data.
func (e *Event) takeData(raw json.RawMessage) error {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if err := dec.Decode(&e.Data); err != nil {
		return err
	}
	job := e.Job
	for key, value := range e.names() {
		v, given := e.Data[key]
		if *value, _ = v.(string); given && *value == "" { // no text gives ""
			return fmt.Errorf("data member %q", key)
		}
		delete(e.Data, key)
	}
	if e.Job != job {
		return fmt.Errorf("data of job %q", e.Job)
	}
	return e.check()
}

// names are the members of data that every event carries.
func (e *Event) names() map[string]*string {
	return map[string]*string{"execution_job_id": &e.Job, "session": &e.Session, "tool": &e.Tool, "principal": &e.Principal, "request_id": &e.RequestID}
}

func (e *Event) check() error {
	if e.Kind == "" || e.At.IsZero() || e.At.Year() > 9999 || (e.Job == "") != e.Kind.Housekeeping() || (e.Job == "") != (e.N == 0) || e.N < 0 {
		return errors.New("kind, job, number or time is missing or wrong")
	}
	for key, value := range e.names() {
		if len(*value) > maxName || !utf8.ValidString(*value) {
			return fmt.Errorf("%s of %d bytes", key, len(*value))
		}
	}
	return nil
}

// invalid wraps an error as [ErrEvent].
func invalid(op string, err *error) {
	if *err != nil {
		*err = fmt.Errorf("%s an audit event: %w: %w", op, ErrEvent, *err)
	}
}
