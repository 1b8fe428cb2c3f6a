// Asynq: a group for each key, folded by an aggregator into one task with all items in the order it was given.
// Obeys the command line of rival.py.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/hibiken/asynq"
)

type asked struct {
	URL         string `json:"url"`
	Ledger      string `json:"ledger"`
	Failed      string `json:"failed"`
	QuietMs     int    `json:"quiet_ms"`
	MaxWaitMs   int    `json:"max_wait_ms"`
	HoldMs      int    `json:"hold_ms"`
	FailOnce    bool   `json:"fail_once"`
	RetryMs     int    `json:"retry_ms"`
	Concurrency int    `json:"concurrency"`
}

type sent struct {
	Key    string `json:"key"`
	Number int    `json:"number"`
	Value  int    `json:"value"`
}

type batch struct {
	Key   string   `json:"key"`
	Items [][2]int `json:"items"`
}

type answer struct {
	Key    string  `json:"key"`
	Number int     `json:"number"`
	Error  *string `json:"error"`
}

type line struct {
	What  string   `json:"what"`
	Run   string   `json:"run"`
	Key   string   `json:"key"`
	At    int64    `json:"at"`
	Items [][2]int `json:"items,omitempty"`
}

var (
	theCase asked
	writing sync.Mutex
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func marshal(value any) []byte {
	text, err := json.Marshal(value)
	must(err)
	return text
}

func write(entry line) {
	writing.Lock()
	defer writing.Unlock()
	entry.At = time.Now().UnixMilli()
	file, err := os.OpenFile(theCase.Ledger, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	must(err)
	_, err = file.Write(append(marshal(entry), '\n'))
	must(err)
	must(file.Close())
}

func firstOf(key string) bool {
	file, err := os.OpenFile(filepath.Join(theCase.Failed, key), os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return false
	}
	must(file.Close())
	return true
}

func aggregate(group string, tasks []*asynq.Task) *asynq.Task {
	folded := batch{Key: group}
	for _, task := range tasks {
		var each sent
		must(json.Unmarshal(task.Payload(), &each))
		folded.Items = append(folded.Items, [2]int{each.Number, each.Value})
	}
	return asynq.NewTask("batch", marshal(folded))
}

func handle(_ context.Context, task *asynq.Task) error {
	var folded batch
	must(json.Unmarshal(task.Payload(), &folded))
	run := uuid.NewString()
	write(line{What: "start", Run: run, Key: folded.Key, Items: folded.Items})
	time.Sleep(time.Duration(theCase.HoldMs) * time.Millisecond)
	if theCase.FailOnce && firstOf(folded.Key) {
		write(line{What: "failed", Run: run, Key: folded.Key})
		return errors.New("failed once")
	}
	write(line{What: "done", Run: run, Key: folded.Key})
	return nil
}

func work(redis asynq.RedisConnOpt) {
	server := asynq.NewServer(redis, asynq.Config{
		Concurrency:      theCase.Concurrency,
		GroupAggregator:  asynq.GroupAggregatorFunc(aggregate),
		GroupGracePeriod: time.Duration(theCase.QuietMs) * time.Millisecond,
		GroupMaxDelay:    time.Duration(theCase.MaxWaitMs) * time.Millisecond,
		LogLevel:         asynq.WarnLevel,
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration {
			return time.Duration(theCase.RetryMs) * time.Millisecond
		},
	})
	mux := asynq.NewServeMux()
	mux.HandleFunc("batch", handle)
	must(server.Run(mux))
}

func send(redis asynq.RedisConnOpt) {
	client := asynq.NewClient(redis)
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var each sent
		must(json.Unmarshal(lines.Bytes(), &each))
		var refused *string
		if _, err := client.Enqueue(asynq.NewTask("update", lines.Bytes()), asynq.Group(each.Key)); err != nil {
			text := err.Error()
			refused = &text
		}
		fmt.Println(string(marshal(answer{each.Key, each.Number, refused})))
	}
	must(client.Close())
}

func main() {
	must(json.Unmarshal([]byte(os.Getenv("RIVAL")), &theCase))
	redis, err := asynq.ParseRedisURI(theCase.URL)
	must(err)
	if os.Args[1] == "work" {
		work(redis)
	} else {
		send(redis)
	}
}
