package wire

import (
	"encoding/json"
	"errors"
	"fmt"
)

// JSON-RPC 2.0 error codes (seed 003), and CodeLocal, which only the host's
// client makes: seed 000 has it for a reply that is late or has no result.
const (
	CodeParse          int32 = -32700
	CodeInvalidRequest int32 = -32600
	CodeMethodNotFound int32 = -32601
	CodeInvalidParams  int32 = -32602
	CodeInternal       int32 = -32603
	CodeLocal          int32 = -1
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
	if err := Valid(line); err != nil {
		return Request{}, &RPCError{Code: CodeParse, Message: "parse error: " + err.Error()}
	}
	var raw rawRequest
	req := Request{JSONRPC: Version}
	if err := Decode(line, &raw); err != nil {
		// The id may still be readable: a caller waits for it.
		var idOnly struct {
			ID *uint64 `json:"id"`
		}
		if Decode(line, &idOnly) == nil && idOnly.ID != nil {
			req.ID = *idOnly.ID
		}
		return req, &RPCError{Code: CodeInvalidRequest, Message: "invalid request: " + err.Error()}
	}
	if raw.ID != nil {
		req.ID = *raw.ID
	}
	switch {
	case raw.JSONRPC == nil || *raw.JSONRPC != Version:
		return req, &RPCError{Code: CodeInvalidRequest, Message: `invalid request: jsonrpc must be "2.0"`}
	case raw.ID == nil:
		return req, &RPCError{Code: CodeInvalidRequest, Message: "invalid request: missing id"}
	case raw.Method == nil || *raw.Method == "":
		return req, &RPCError{Code: CodeInvalidRequest, Message: "invalid request: missing method"}
	}
	req.Method, req.Params = *raw.Method, raw.Params
	return req, nil
}

// DecodeParams reads a request's params into v. Absent, null, an empty object
// and an empty array all mean no parameters (checklist B3, L9).
func DecodeParams(params json.RawMessage, v any) error {
	switch kindOf(params) {
	case 0, 'n':
		return nil
	case '[':
		var list []json.RawMessage
		if err := Decode(params, &list); err != nil {
			return err
		}
		if len(list) > 0 {
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
// malformed. An id of null counts as 0 (checklist L10).
func DecodeResponse(line []byte) (Response, error) {
	var raw struct {
		JSONRPC string          `json:"jsonrpc"`
		ID      *uint64         `json:"id"`
		Result  json.RawMessage `json:"result"`
		Error   *RPCError       `json:"error"`
	}
	if err := Decode(line, &raw); err != nil {
		return Response{}, err
	}
	if raw.JSONRPC != Version {
		return Response{}, fmt.Errorf("response has jsonrpc %.20q, want %q", raw.JSONRPC, Version)
	}
	r := Response{JSONRPC: Version, Result: raw.Result, Error: raw.Error}
	if raw.ID != nil {
		r.ID = *raw.ID
	}
	if r.Error != nil {
		if k := kindOf(r.Result); k != 0 && k != 'n' {
			return Response{}, errors.New("response has both a result and an error")
		}
		r.Result = nil
		return r, nil
	}
	if r.Result == nil {
		return r, ErrNoResult
	}
	return r, nil
}
