%% Tells what comes of each case of common_test, a line each, in $TMPDIR/results.jsonl: what common_test itself writes is HTML.
-module(erlang_told).
-export([init/2, pre_init_per_testcase/4, post_end_per_testcase/5, on_tc_fail/4, on_tc_skip/4]).

init(_Id, _Options) ->
    {ok, filename:join(os:getenv("TMPDIR", "/tmp"), "results.jsonl")}.

pre_init_per_testcase(Suite, Case, Config, File) ->
    tell(File, name(Suite, Case, Config), "open"),
    {Config, [{now, Config} | File]}.

post_end_per_testcase(Suite, Case, Config, Return, State) ->
    File = file_of(State),
    Result = case {proplists:get_value(tc_status, Config, ok), Return} of
                 {ok, {failed, _}} -> "fail";
                 {ok, {error, _}} -> "fail";
                 {ok, _} -> "pass";
                 {{skipped, _}, _} -> "skip";
                 _ -> "fail"
             end,
    tell(File, name(Suite, Case, Config), Result),
    {Return, File}.

%% A failed preparation ends a case without the other callback.
on_tc_fail(_Suite, {Case, _Group}, _Reason, State) -> on_tc_fail(_Suite, Case, _Reason, State);
on_tc_fail(Suite, Case, _Reason, [{now, Config} | File]) ->
    tell(File, name(Suite, Case, Config), "fail"),
    File;
on_tc_fail(_Suite, _Case, _Reason, File) -> File.

on_tc_skip(_Suite, {Case, _Group}, _Reason, State) -> on_tc_skip(_Suite, Case, _Reason, State);
on_tc_skip(Suite, Case, _Reason, [{now, Config} | File]) ->
    tell(File, name(Suite, Case, Config), "skip"),
    File;
on_tc_skip(_Suite, _Case, _Reason, File) -> File.

file_of([{now, _} | File]) -> File;
file_of(File) -> File.

%% The groups a case is in are part of its name: the same function runs in several.
name(Suite, Case, Config) ->
    Own = [proplists:get_value(name, proplists:get_value(tc_group_properties, Config, []), "")],
    Outer = [proplists:get_value(name, Properties, "") || Properties <- proplists:get_value(tc_group_path, Config, [])],
    Groups = [atom_to_list(Group) || Group <- lists:reverse(Own ++ Outer), is_atom(Group)],
    lists:flatten(lists:join("/", [atom_to_list(Suite) | Groups] ++ [atom_to_list(Case)])).

tell(File, Name, Result) ->
    file:write_file(File, io_lib:format("{\"case\": \"~s\", \"result\": \"~s\"}~n", [Name, Result]), [append]).
