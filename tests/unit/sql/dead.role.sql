SELECT session_user;
