package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
)

// JSON-RPC 2.0 error codes (seed 003), and CodeLocal, which only the host's
// client makes: seed 000 has it for a reply that is late or has no result.
const (
	CodeParse          int32 = -32700
	CodeInvalidRequest int32 = -32600
	CodeMethodNotFound int32 = -32601
	CodeInvalidParams  int32 = -32602
	CodeInternal       int32 = -32603
	// CodeFrozen is for what a guest that is frozen for a snapshot refuses. Nothing
	// was done; after the thaw the same request may be made again (extension).
	CodeFrozen int32 = -32001
	CodeLocal  int32 = -1
)

// Version is the only value of a message's jsonrpc field.
const Version = "2.0"

// Request is one JSON-RPC call. Params may be absent, null, an object or an
// array (checklist B3).
type Request struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      uint64          `json:"id"`
	Method  string          `json:"method"`
	Params  json.RawMessage `json:"params,omitempty"`
}

// Response answers the request of the same ID with exactly one of Result and
// Error. The ID of an answer to a line that could not be read is 0.
type Response struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      uint64          `json:"id"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *RPCError       `json:"error,omitempty"`
}

// RPCError is the error member of a Response.
type RPCError struct {
	Code    int32           `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

// Error implements error.
func (e *RPCError) Error() string { return fmt.Sprintf("rpc error %d: %s", e.Code, e.Message) }

// rawRequest tells an absent field from a zero one.
type rawRequest struct {
	JSONRPC *string         `json:"jsonrpc"`
	ID      *uint64         `json:"id"`
	Method  *string         `json:"method"`
	Params  json.RawMessage `json:"params"`
}

// DecodeRequest reads one request line. Its error is an *RPCError ready to be
// sent: CodeParse for what is not JSON, CodeInvalidRequest for JSON that is not
// a request. The ID is set in the returned Request whenever it could be read, so
// that the answer can carry it (checklist C6, L10).
func DecodeRequest(line []byte) (Request, *RPCError) {
	err := Valid(line)
	if err != nil && !errors.Is(err, ErrDuplicateKey) {
		return Request{}, &RPCError{Code: CodeParse, Message: "parse error: " + err.Error()}
	}
	var raw rawRequest
	req := Request{JSONRPC: Version}
	if err == nil {
		err = decodeValid(line, &raw)
	}
	if err != nil {
		// The id may still be readable: a caller waits for it.
		req.ID = soleID(line)
		return req, &RPCError{Code: CodeInvalidRequest, Message: "invalid request: " + err.Error()}
	}
	if raw.ID != nil {
		req.ID = *raw.ID
	}
	switch {
	case raw.JSONRPC == nil || *raw.JSONRPC != Version: // checklist L10
		return req, &RPCError{Code: CodeInvalidRequest, Message: `invalid request: jsonrpc must be "2.0"`}
	case raw.ID == nil:
		return req, &RPCError{Code: CodeInvalidRequest, Message: "invalid request: missing id"}
	case raw.Method == nil || *raw.Method == "":
		return req, &RPCError{Code: CodeInvalidRequest, Message: "invalid request: missing method"}
	}
	req.Method, req.Params = *raw.Method, raw.Params
	return req, nil
}

// soleID returns the id of a JSON object that gives exactly one, 0 for any other
// JSON text.
func soleID(line []byte) uint64 {
	line = bytes.TrimSpace(line)
	if line[0] != '{' {
		return 0
	}
	var id uint64
	found := 0
	s := splitter{b: line[1:]}
	for {
		key, ok := s.next()
		if !ok {
			break
		}
		value, _ := s.next()
		if string(textOf(key)) != "id" {
			continue
		}
		if found++; decodeValue(value, reflect.ValueOf(&id).Elem()) != nil {
			return 0
		}
	}
	if found != 1 {
		return 0
	}
	return id
}

// DecodeParams reads a request's params into v. Absent, null, an empty object
// and an empty array all mean no parameters (checklist B3, L9).
func DecodeParams(params json.RawMessage, v any) error {
	switch kindOf(params) {
	case 0, 'n':
		return nil
	case '[':
		if err := Valid(params); err != nil {
			return err
		}
		if _, some := (&splitter{b: bytes.TrimSpace(params)[1:]}).next(); some {
			return errors.New("parameters must be named, in an object")
		}
		return nil
	default:
		return Decode(params, v)
	}
}

// ErrNoResult means a response that carries neither a result nor an error.
var ErrNoResult = errors.New("missing result in response")

// DecodeResponse reads one response line. ErrNoResult is returned, with the ID
// set, for a response that has neither result nor error; one that has both is
// malformed, and so is a request, of which a guest may make none (threat T19). A
// result of null is none: it would read as a success with every field zero. An
// id of null counts as 0 (checklist L10).
func DecodeResponse(line []byte) (Response, error) {
	var raw struct {
		JSONRPC string          `json:"jsonrpc"`
		ID      *uint64         `json:"id"`
		Method  json.RawMessage `json:"method"`
		Result  json.RawMessage `json:"result"`
		Error   *RPCError       `json:"error"`
	}
	if err := Decode(line, &raw); err != nil {
		return Response{}, err
	}
	if raw.JSONRPC != Version {
		return Response{}, fmt.Errorf("response has jsonrpc %.20q, want %q", raw.JSONRPC, Version)
	}
	if raw.Method != nil {
		return Response{}, errors.New("a request where a response is wanted")
	}
	r := Response{JSONRPC: Version, Error: raw.Error}
	if raw.ID != nil {
		r.ID = *raw.ID
	}
	if k := kindOf(raw.Result); k != 0 && k != 'n' {
		r.Result = raw.Result
	}
	switch {
	case r.Error != nil && r.Result != nil:
		return Response{}, errors.New("response has both a result and an error")
	case r.Error == nil && r.Result == nil:
		return r, ErrNoResult
	}
	return r, nil
}
