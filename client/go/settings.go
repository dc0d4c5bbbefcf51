package fencepost

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

const (
	configBytesMax = 1 << 20
	valueBytesMax  = 64 << 10
)

// settingKeys are the keys of the configuration file that this package uses, as flags of the fence
// command are named; the variable of auth-file is FENCE_AUTH_FILE.
var settingKeys = []string{"server", "guard", "store", "owner", "incarnation", "auth-file",
	"ca-file", "client-cert", "client-key", "insecure-http"}

// ignoredKeys are for the fence command alone, which shares the file.
const ignoredKeys = " log color output "

// FromEnv creates a client from the settings of the fence command: the variables FENCE_SERVER,
// FENCE_GUARD, FENCE_OWNER, FENCE_INCARNATION, FENCE_AUTH_FILE, FENCE_CA_FILE, FENCE_CLIENT_CERT,
// FENCE_CLIENT_KEY and FENCE_INSECURE_HTTP, and the TOML file that FENCE_CONFIG names. A variable
// beats the file; an empty one counts as not set. A name with _FILE at its end names a file that
// holds the value.
//
// The error is of kind [ErrInvalid] and names the setting and its origin.
func FromEnv() (*Client, error) { return FromVariables(os.Getenv) }

// FromVariables is [FromEnv] with other variables than those of the process; get returns "" for
// one that is not set.
func FromVariables(get func(name string) string) (*Client, error) {
	options, failed := readSettings(get)
	if failed != nil {
		return nil, failed
	}
	return New(*options)
}

func readSettings(getenv func(string) string) (*Options, *Error) {
	values := map[string]string{}
	if file := getenv("FENCE_CONFIG"); file != "" {
		if failed := readConfig(file, values); failed != nil {
			return nil, failed
		}
	}
	for _, key := range settingKeys {
		value, failed := readVariable(key, getenv)
		if failed != nil {
			return nil, failed
		}
		if value != "" {
			values[key] = value
		}
	}
	o := &Options{
		Server: values["server"], Guard: values["guard"], Owner: values["owner"],
		Incarnation: values["incarnation"], TokenFile: values["auth-file"],
		CAFile: values["ca-file"], ClientCert: values["client-cert"], ClientKey: values["client-key"],
	}
	if o.Guard == "" {
		o.Guard = values["store"]
	}
	switch insecure := values["insecure-http"]; insecure {
	case "", "false":
	case "true":
		o.InsecureHTTP = true
	default:
		return nil, invalid("insecure-http (FENCE_INSECURE_HTTP) is %q; it must be true or false",
			insecure)
	}
	return o, nil
}

func readVariable(key string, getenv func(string) string) (string, *Error) {
	name := "FENCE_" + strings.ToUpper(strings.ReplaceAll(key, "-", "_"))
	value, file := getenv(name), getenv(name+"_FILE")
	switch {
	case file == "":
		return value, nil
	case value != "":
		return "", invalid("%s and %s_FILE are both set; set one of them", name, name)
	}
	text, failed := readFile(name+"_FILE", file)
	if failed == nil && len(text) > valueBytesMax {
		failed = invalid("%s_FILE %s has more than %d bytes", name, file, valueBytesMax)
	}
	return strings.TrimSpace(string(text)), failed
}

// readConfig reads the flat form of TOML that settings have: key = "value", key = true, comments.
func readConfig(file string, values map[string]string) *Error {
	text, failed := readFile("FENCE_CONFIG", file)
	if failed != nil {
		return failed
	}
	for i, line := range strings.Split(string(text), "\n") {
		key, value, rule := configLine(strings.TrimSpace(line))
		if key == "" && rule == "" || strings.Contains(ignoredKeys, " "+key+" ") {
			continue
		}
		if _, isTwice := values[key]; rule == "" && isTwice {
			rule = "sets " + key + " a second time"
		}
		if rule != "" {
			// The line itself is not repeated: it may hold a secret.
			return invalid("file %s, line %d: %s", file, i+1, rule)
		}
		values[key] = value
	}
	return nil
}

// configLine returns the key and value of a line, no key for an empty one, or the rule it breaks.
func configLine(line string) (key, value, rule string) {
	if line == "" || line[0] == '#' {
		return "", "", ""
	}
	key, value, ok := strings.Cut(line, "=")
	if !ok {
		return "", "", `is not of the form key = "value"`
	}
	key = strings.ReplaceAll(strings.Trim(strings.TrimSpace(key), `"`), "_", "-")
	isKnown := strings.Contains(ignoredKeys, " "+key+" ")
	for _, known := range settingKeys {
		isKnown = isKnown || key == known
	}
	if !isKnown {
		return "", "", fmt.Sprintf("there is no setting %q; the settings are %s", key,
			strings.Join(settingKeys, ", "))
	}
	value, ok = configValue(strings.TrimSpace(value))
	if !ok {
		return "", "", key + ` must be a text in quotes, true or false`
	}
	return key, value, ""
}

func configValue(text string) (string, bool) {
	rest := ""
	switch {
	case strings.HasPrefix(text, `"`):
		prefix, err := strconv.QuotedPrefix(text)
		if err != nil {
			return "", false
		}
		rest = text[len(prefix):]
		text, err = strconv.Unquote(prefix)
		if err != nil {
			return "", false
		}
	case strings.HasPrefix(text, "'"):
		end := strings.IndexByte(text[1:], '\'')
		if end < 0 {
			return "", false
		}
		text, rest = text[1:1+end], text[end+2:]
	default:
		text, _, _ = strings.Cut(text, "#")
		text = strings.TrimSpace(text)
		return text, text == "true" || text == "false"
	}
	rest = strings.TrimSpace(rest)
	return text, rest == "" || rest[0] == '#'
}

func readFile(what, path string) ([]byte, *Error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, invalid("%s: %v", what, err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, configBytesMax+1))
	if err != nil {
		return nil, invalid("%s: %v", what, err)
	}
	if len(text) > configBytesMax {
		return nil, invalid("%s %s has more than %d bytes", what, path, configBytesMax)
	}
	return text, nil
}
