package server

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
)

// Capability is one thing that a principal may do. None implies another.
type Capability string

// The capabilities.
const (
	Read   Capability = "read"   // calls that change nothing, and what they tell
	Mutate Capability = "mutate" // calls that publish outputs or change session state
	Script Capability = "script" // hand over code: tools and parameters of trust script
	Admin  Capability = "admin"  // what the others allow also with everybody's sessions, jobs and audit events
)

// Principal is who calls: the owner of the sessions and jobs that the calls make. It holds no token.
type Principal struct {
	Name         string
	Capabilities []Capability
}

// asks says whose jobs and sessions the principal may ask for.
func (p Principal) asks() job.Who { return job.Who{Name: p.Name, All: p.May(Admin)} }

// May reports whether the principal has the capability.
func (p Principal) May(c Capability) bool { return slices.Contains(p.Capabilities, c) }

// Authenticator tells who sends an HTTP request from its header, before a byte of the body is read. The text of its
// error is sent to the client: it must be fixed.
type Authenticator func(http.Header) (Principal, error)

// Local authenticates everybody as the principal "local".
func Local(capabilities ...Capability) Authenticator {
	return func(http.Header) (Principal, error) {
		return Principal{Name: "local", Capabilities: capabilities}, nil
	}
}

// Token is one bearer token, known by its digest alone.
type Token struct {
	Name         string // of the principal
	SHA256       string // hex, 64 digits
	Capabilities []Capability
	NotAfter     time.Time // zero: does not expire
}

// minToken is how many characters a presented token has at least: fewer can be guessed.
const minToken = 32

// What a client is told: never why exactly, and nothing of what it sent.
var (
	errNoToken  = errors.New("a bearer token is needed")
	errBadToken = errors.New("the bearer token is not valid")
)

// plainName is what a principal may be called.
var plainName = regexp.MustCompile(`^[A-Za-z0-9._@-]{1,64}$`)

// Tokens authenticates by bearer tokens. It returns all mistakes of the list: empty, a digest that is none or is there
// twice, no plain name, a capability that does not exist, or nothing but expired tokens. They say nothing
// of what is there: a token may be in the wrong place.
func Tokens(list []Token) (Authenticator, error) {
	digests := make([][]byte, len(list))
	seen, alive := map[string]bool{}, false
	var errs []error
	for i, t := range list {
		digest, err := hex.DecodeString(t.SHA256)
		switch {
		case err != nil || len(digest) != sha256.Size:
			errs = append(errs, fmt.Errorf("token %d: sha256 is not 64 hex digits", i))
		case seen[string(digest)]:
			errs = append(errs, fmt.Errorf("token %d: it is there twice", i))
		case !plainName.MatchString(t.Name):
			errs = append(errs, fmt.Errorf("token %d: the name is not 1 to 64 of A-Z a-z 0-9 . _ @ -", i))
		}
		for _, c := range t.Capabilities {
			if !slices.Contains([]Capability{Read, Mutate, Script, Admin}, c) {
				errs = append(errs, fmt.Errorf("token %d: a capability that does not exist: there are read, mutate, script and admin", i))
			}
		}
		digests[i], seen[string(digest)], alive = digest, true, alive || !t.expired()
	}
	if !alive {
		errs = append(errs, errors.New("there is no token that is valid now"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return func(h http.Header) (Principal, error) {
		scheme, token, _ := strings.Cut(h.Get("Authorization"), " ")
		if !strings.EqualFold(scheme, "Bearer") {
			return Principal{}, errNoToken
		}
		sum := sha256.Sum256([]byte(token))
		found := -1
		for i := range list { // all of them: the time must not tell which
			if subtle.ConstantTimeCompare(sum[:], digests[i]) == 1 {
				found = i
			}
		}
		if found < 0 || len(token) < minToken || list[found].expired() {
			return Principal{}, errBadToken
		}
		return Principal{Name: list[found].Name, Capabilities: list[found].Capabilities}, nil
	}, nil
}

func (t Token) expired() bool { return !t.NotAfter.IsZero() && time.Now().After(t.NotAfter) }

// info is the principal in the form that the SDK carries with every request. UserID binds an MCP session to it.
func (p Principal) info() *auth.TokenInfo {
	return &auth.TokenInfo{UserID: p.Name, Extra: map[string]any{"principal": p}}
}

// principal returns who sent a request. Nobody has no capability.
func principal(extra *mcp.RequestExtra) (p Principal) {
	if extra != nil && extra.TokenInfo != nil {
		p, _ = extra.TokenInfo.Extra["principal"].(Principal) // else nobody
	}
	return p
}
