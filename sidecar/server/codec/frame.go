package codec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/eda-sidecar/eda-sidecar/internal/strictjson"
)

// maxDepth bounds the nesting of a message, whose readers behind the codec recurse.
const maxDepth = 64

// Codes of JSON-RPC 2.0 section 5.1.
const (
	parseError     = -32700
	invalidRequest = -32600
	internalError  = -32603
)

// ErrNotObject says that a message is JSON, but no object: a batch, which MCP has not had since 2025-06-18, or a scalar.
var ErrNotObject = errors.New("not a JSON object (batches are refused)")

// ErrID says that the id of a message is a number that readers would not give back as it came: a fraction, or one that a
// float64 does not hold exactly. MCP wants an integer or a string.
var ErrID = errors.New("the id is neither a string nor an integer between -2^53 and 2^53")

// Frame is what one line of input is: Raw, *TooLarge or *Malformed.
type Frame interface{ frame() }

// Raw is one JSON object that Check accepts, without white space around it. It belongs to the receiver.
type Raw []byte

// TooLarge is a message over its bound. As an error it comes from Encoder.Write.
type TooLarge struct {
	ID     json.RawMessage // its id as it was written, a number or a string of at most 128 bytes; nil: none was found
	Size   int64           // bytes without the newline
	Bounds Bounds          // those that it was refused by
	Out    bool            // it was ours
}

// Malformed is a message that Check refuses.
type Malformed struct{ Err error }

func (Raw) frame()        {}
func (*TooLarge) frame()  {}
func (*Malformed) frame() {}

// Check returns nil for one JSON object in UTF-8, at most 64 deep, in which no object has two members of one name. Names
// are compared as the SDK does, with their case. An id that is a number is an integer that every reader can hold. It is for whole messages, as HTTP has them; Decoder calls it by itself.
func Check(message []byte) *Malformed {
	if err := strictjson.Check(message, maxDepth, 0); err != nil {
		return &Malformed{err}
	}
	if bytes.TrimSpace(message)[0] != '{' {
		return &Malformed{ErrNotObject}
	}
	var id idFinder
	id.scan(message)
	if !id.exact() {
		return &Malformed{ErrID}
	}
	return nil
}

// Error says what is malformed. It may quote a name as long as the message.
func (m *Malformed) Error() string { return fmt.Sprintf("malformed message: %v", m.Err) }

// Answer returns the JSON-RPC error for m, without a newline.
func (m *Malformed) Answer() []byte {
	code := parseError
	if errors.Is(m.Err, ErrNotObject) || errors.Is(m.Err, ErrID) {
		code = invalidRequest
	}
	return answer(nil, code, fmt.Sprintf("%.200s", m.Error()), nil)
}

// limit is the bound that t is over.
func (t *TooLarge) limit() int64 {
	if t.Out {
		return t.Bounds.Out
	}
	return t.Bounds.In
}

// Error says how large, and how large it may be.
func (t *TooLarge) Error() string {
	return fmt.Sprintf("message of %d bytes is over the limit of %d", t.Size, t.limit())
}

// Answer returns the JSON-RPC error for t, without a newline: the sender's fault, or an internal error for one of ours.
func (t *TooLarge) Answer() []byte {
	code := invalidRequest
	if t.Out {
		code = internalError
	}
	return answer(t.ID, code, t.Error(), map[string]any{"limit_bytes": t.limit(), "size_bytes": t.Size, "phase": t.Bounds.Phase})
}

func answer(id json.RawMessage, code int, message string, data map[string]any) []byte {
	type failure struct {
		Code    int            `json:"code"`
		Message string         `json:"message"`
		Data    map[string]any `json:"data,omitempty"`
	}
	b, _ := json.Marshal(struct { // cannot fail: text, numbers, and an id that is JSON
		Version string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"` // nil is null
		Error   failure         `json:"error"`
	}{"2.0", id, failure{code, message, data}})
	return b
}
